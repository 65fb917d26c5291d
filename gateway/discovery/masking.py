"""Masking of numbers, ids, dates, paths and addresses, which change from request to request.

A mark replaces each of them, so that prompts that differ only in such details become the same text. Free text
in slots (names, tasks, documents) is not masked: ``templates`` finds slots by comparison. Quoted text stays,
since a role may be quoted. The time is linear in the text's length: no pattern backtracks.
"""

from __future__ import annotations

import re

from agentspec.role_names import mask_ids

MAX_WORD_CHARS = 256
LINE, PARAGRAPH = "\n", "\n\n"  # words of a masked text

_DAYS_AND_MONTHS = frozenset(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Mon Tue Wed Thu Fri Sat Sun "
    "January February March April May June July August September October November December "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec".split()
)
_OPENING, _CLOSING = "\"'`([{<*", "\"'`)]}>*.,;:!?"
_IS_ODD = re.compile(r"[0-9/@\\]").search
_DIGITS = re.compile(r"[0-9]++")


def masked(text: str) -> str:
    """Return ``text`` with variable parts replaced by marks and white space by single spaces.

    The ends of lines and paragraphs become words of their own.
    """
    words = _words(text)
    plain = str.isalpha  # a fast check that excludes most words
    odd = [
        word
        for word in set(words)
        if not plain(word) or word in _DAYS_AND_MONTHS or len(word) > MAX_WORD_CHARS
    ]
    marks = {word: mark for word in odd if (mark := mask_word(word)) is not word}
    return " ".join([marks.get(word, word) for word in words] if marks else words)


def joined(masked: str) -> str:
    """Return a masked text without the words for the ends of lines."""
    return masked.replace(f" {PARAGRAPH}", "").replace(f" {LINE}", "")


def _words(text: str) -> list[str]:
    words: list[str] = []
    is_first = is_empty = True
    for line in text.splitlines():
        found = line.split()
        if found:
            if not is_first:
                words.append(PARAGRAPH if is_empty else LINE)
            words += found
            is_first = is_empty = False
        else:
            is_empty = True
    return words


def mask_word(word: str) -> str:
    """Return a word (without white space) or the mark that replaces it."""
    if len(word) > MAX_WORD_CHARS and word.isascii():  # no natural word is that long
        return "<data>"
    if word.isalpha():
        return "<day>" if word in _DAYS_AND_MONTHS else word
    core = word.lstrip(_OPENING)
    head = word[: len(word) - len(core)]
    core = core.rstrip(_CLOSING)
    mark = _mask_core(core)
    return word if mark is core else head + mark + word[len(head) + len(core) :]


def is_path(word: str) -> bool:
    """True for ``/etc/hosts``, ``~/notes``, ``src/main.py``, ``C:\\temp``; not ``and/or`` or ``TCP/IP``."""
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
