"""What changes from one request to the next and is easily seen: numbers, ids, dates, paths, addresses.

Each is replaced by a mark, so that two prompts that differ in such things only become one text. Free text in
a prompt's slots (names, tasks, documents) is not seen here: ``discovery_templates`` finds slots by comparing.
Quoted text stays, since a role may stand in quotes. Time is linear in the text: no pattern goes back.
"""

from __future__ import annotations

import re

from agentspec.role_names import mask_ids

MAX_WORD_CHARS = 256

_DAYS_AND_MONTHS = frozenset(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Mon Tue Wed Thu Fri Sat Sun "
    "January February March April May June July August September October November December "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec".split()
)
_OPENING, _CLOSING = "\"'`([{<*", "\"'`)]}>*.,;:!?"
_IS_ODD = re.compile(r"[0-9/@\\]").search
_DIGITS = re.compile(r"[0-9]++")


def masked(text: str) -> str:
    """``text`` with marks for what changes, and single spaces for white space."""
    words = text.split()
    plain = str.isalpha  # most words are: they are not looked at any closer
    odd = [
        word
        for word in set(words)
        if not plain(word) or word in _DAYS_AND_MONTHS or len(word) > MAX_WORD_CHARS
    ]
    marks = {word: mark for word in odd if (mark := mask_word(word)) is not word}
    return " ".join([marks.get(word, word) for word in words] if marks else words)


def mask_word(word: str) -> str:
    """A word without white space, or what stands for it."""
    if len(word) > MAX_WORD_CHARS and word.isascii():  # no word: data
        return "<data>"
    if word.isalpha():
        return "<day>" if word in _DAYS_AND_MONTHS else word
    core = word.lstrip(_OPENING)
    head = word[: len(word) - len(core)]
    core = core.rstrip(_CLOSING)
    mark = _mask_core(core)
    return word if mark is core else head + mark + word[len(head) + len(core) :]


def is_path(word: str) -> bool:
    """``/etc/hosts``, ``~/notes``, ``src/main.py``, ``C:\\temp``; not ``and/or`` nor ``TCP/IP``."""
    if "\\" in word:
        return word[1:3] == ":\\" or word.count("\\") > 1
    if word.startswith(("/", "~/", "./", "../")):
        return len(word) > 1 and not word.startswith("//")
    return word.count("/") > 1 or "." in word.partition("/")[2]


def _mask_core(word: str) -> str:
    if not _IS_ODD(word):
        return "<day>" if word in _DAYS_AND_MONTHS else word
    if "://" in word:
        return "<url>"
    if "@" in word and "." in word.partition("@")[2]:
        return "<email>"
    if is_path(word):
        return "<path>"
    if _DIGITS.search(word) is None:
        return word
    return _DIGITS.sub("#", mask_ids(word))
