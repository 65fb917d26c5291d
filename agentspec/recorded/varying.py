"""Masks for text that varies between two runs of the same agent on the same task.

Ids, addresses, names of temporary folders, dates and times of day, measured durations, process numbers,
spaces at the ends of lines. Plain numbers, names and all other text stay: a call may depend on them.
"""

from __future__ import annotations

import re

from agentspec.role_names import mask_ids

# no longer word with the same beginning: "Decision 4" and "Marathon 42" are not dates
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_DAY = r"(?:(?:Mon|Fri|Sun)(?:day)?|Tue(?:s|sday)?|Wed(?:nesday)?|Thu(?:rs|rsday)?|Sat(?:urday)?)\b"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"

_MARKS = (
    # the first name below a temporary folder, unless it looks like a file name
    (
        re.compile(
            r"(?:/var/folders/\w+/\w+/T|/var/tmp|/tmp)/(?![\w-]+\.[a-z]{1,4}\b)[^\s/'\"`:;,()\[\]<>\\]+"
        ),
        "<tmp>",
    ),
    (
        re.compile(r"\b\d{4}-\d{2}-\d{2}(?:[T ]" + _CLOCK + r"(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?)?"),
        "<date>",
    ),
    (
        re.compile(
            rf"\b(?:{_DAY},? )?(?:{_MONTH} {{1,2}}\d{{1,2}}\b|\d{{1,2}} {_MONTH}(?! {{1,2}}\d{{1,2}}\b))"
            rf"(?:,? \d{{4}}\b)?(?:,? {_CLOCK})?(?: [A-Z]{{3,4}})?(?: \d{{4}}\b)?"
        ),
        "<date>",
    ),
    (re.compile(r"\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b(?:\d+m ?)?\d+\.\d+ ?(?:s|ms|us|µs|ns|sec|secs|seconds?|minutes?)\b"), "<duration>"),
    (re.compile(r"\b(pid|process|process id)([ =:#]+)\d+\b", re.IGNORECASE), r"\1\2<number>"),
    (re.compile(r"^(\[\d+\]) \d+$", re.MULTILINE), r"\1 <number>"),  # a shell's report of a job
    (re.compile(r"\b0x[0-9a-fA-F]{6,16}\b"), "<address>"),
    (re.compile(r"\b1\d{9}(?:\.\d+)?\b"), "<time>"),  # seconds since 1970
)
_UUID_OR_WORD = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[A-Za-z0-9]{6,}")


def mask_varying(text: str) -> str:
    """Return ``text`` with its varying parts masked. Linear in the text."""
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    for pattern, mark in _MARKS:
        text = pattern.sub(mark, text)
    return _UUID_OR_WORD.sub(_mask_word, text)


def _mask_word(match: re.Match[str]) -> str:
    word = match[0]
    return word if word.isalpha() or word.isdigit() else mask_ids(word)  # a long number may be meaningful
