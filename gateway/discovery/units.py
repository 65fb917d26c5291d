"""Splits a masked prompt into units (sentences and lines), and judges which units may be filled-in values.

Instructions show an agent's role. The text behind a label (``Profile: ...``), in a list below a heading, in a
tag or in JSON, and statements about a user or the date, are mostly values. They do not count as signs of a
role until other calls show that they are. No other module judges the form of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentspec.gateway.discovery.masking import LINE, PARAGRAPH
from agentspec.gateway.discovery.naming import is_action
from agentspec.gateway.discovery.wording import (
    ADDRESSES,
    DATES,
    PEOPLE,
    ROLE_HEADINGS,
    ROLE_LABELS,
    STARTERS,
    TELLS,
    TELLS_OF_NAMED,
    THEY,
    TIMES,
    TURNS,
    VALUE_HEADINGS,
    VERBS,
)

MAX_UNITS = 400
MAX_LABEL_WORDS = 4
MAX_HEADING_WORDS = 8
MAX_ROLE_WORDS = 4

_ENDS = (".", "!", "?", '."', ".)", '?"', '!"', "。", "！", "？")
_BULLET = re.compile(r"(?:[-*•–+]|\(?#[.)]|[a-z][.)])$")
_TAG = re.compile(r"<([A-Za-z][\w-]*)[^<>]*>$")
_CLOSING_TAG = "<<path>>"  # a masked ``</name>``
_ASSIGNS = ("you are ", "you're ", "act as ", "your role is ", "your task is to ", "your job is to ")
_TALKS = re.compile(
    r"you(?: are|'re) (?:now |currently )?(?:talking|speaking|chatting|helping|assisting|working|serving)\b"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence or line.

    Attributes:
        key: equal keys mean the same unit: the label of a labelled unit, else all words.
        words: the words of the unit.
        weight: weight of a word as a sign of a role; 0 if the unit has the form of a value.
        is_labelled: True if the unit starts with a label.
        instructs: True if the unit tells the reader to do something.
    """

    key: str
    words: tuple[str, ...]
    weight: float
    is_labelled: bool = False
    instructs: bool = False


def units_of(masked: str, is_system: bool) -> list[Unit]:
    """Return the units of a masked text, in order."""
    result: list[Unit] = []
    below = _Below()
    for line in _lines(masked):
        for unit in _of_line(line, below, is_system):
            result.append(unit)
            if len(result) == MAX_UNITS:
                return result
    return result


def assigns_role(words: Sequence[str]) -> int:
    """Return the number of words before the role that a sentence assigns, or 0: 3 in ``You are the router``.

    ``You are helping ...`` assigns no role: it names the agent's user.
    """
    start = " ".join(words[:5]).lower()
    for phrase in _ASSIGNS:
        if start.startswith(phrase):
            at = phrase.count(" ")
            at += at < len(words) and words[at].lower() in ("a", "an", "the", "our")
            return 0 if at < len(words) and words[at].islower() and words[at].endswith("ing") else at
    return 0


def is_of_turn(unit: Unit) -> bool:
    """True for a line whose label names a turn: ``Question: ...``."""
    return unit.is_labelled and any(_plain(word) in TURNS for word in unit.key.split())


def is_variable(word: str, is_first: bool, has_names: bool) -> bool:
    """True if a word within an instruction may be a value, because it is masked or a name."""
    if "#" in word or "<" in word:
        return True
    return has_names and not is_first and word[:1].isupper() and word[1:2].islower()


def variables(words: Sequence[str], has_names: bool) -> list[bool]:
    """Return one flag per word of a unit: True if it may be a value. An assigned role is not one."""
    at = assigns_role(words)
    end = at
    while (
        at and end < min(at + MAX_ROLE_WORDS, len(words)) and not (end > at and words[end - 1][-1] in ".,:;")
    ):
        end += 1
    is_owned = any(word.endswith("'s") for word in words[at:end])  # ``Ann's assistant``
    return [
        is_variable(word, place == 0, has_names) and (is_owned or not at <= place < end or "#" in word)
        for place, word in enumerate(words)
    ]


class _Below:
    """The heading that the next lines belong to."""

    def __init__(self) -> None:
        self._is_value = self._is_filled = False
        self._is_list = self._has_begun = False
        self._tag = ""
        self._is_turn = self._is_after_break = False

    @property
    def is_value(self) -> bool:
        """True if the next line is below a heading that does not belong to a role."""
        return self._is_value

    @property
    def is_filled(self) -> bool:
        """True if the next line is a value even if it instructs: below such a heading, or within a turn."""
        return (self._is_value and self._is_filled) or self._is_turn

    def begin_turn(self, label: Sequence[str]) -> None:
        """Begin a labelled line. The following lines belong to the same turn if the label names a turn."""
        self._is_turn = any(_plain(word) in TURNS for word in label)

    def note_break(self) -> None:
        """End a paragraph and its turn. The text below a heading of values ends at an instruction."""
        self._is_turn = False
        self._is_after_break = self._has_begun
        if self._has_begun and not self._tag and not self._is_list and not self._is_filled:
            self._is_value = False

    def note(self, words: Sequence[str], is_bullet: bool) -> None:
        """Begin a line that is not a heading."""
        if self._is_value and not self._tag:
            if self._has_begun and self._is_list and not is_bullet:
                self._is_value = False
            if self._is_after_break and not is_bullet and _instructs(words):
                self._is_value = False
            self._is_list = is_bullet if not self._has_begun else self._is_list and is_bullet
        self._has_begun, self._is_after_break = True, False

    def open(self, words: Sequence[str], tag: str = "") -> None:
        """Begin a heading or a tag."""
        plain = {_plain(word) for word in words}
        self._is_filled = not VALUE_HEADINGS.isdisjoint(plain) and ROLE_LABELS.isdisjoint(plain)
        self._is_value = self._is_filled or ROLE_HEADINGS.isdisjoint(plain)
        self._has_begun = self._is_list = False
        self._is_turn = self._is_after_break = False
        self._tag = tag

    def close(self) -> None:
        """End a tag."""
        self._tag, self._is_value = "", False


def _lines(masked: str) -> Iterator[list[str]]:
    """Yield the words of each line; an empty list for the end of a paragraph."""
    line: list[str] = []
    for word in masked.split(" "):
        if word in (LINE, PARAGRAPH):
            if line:
                yield line
            line = []
            if word == PARAGRAPH:
                yield []
        else:
            line.append(word)
    if line:
        yield line


def _of_line(words: list[str], below: _Below, is_system: bool) -> Iterator[Unit]:
    if not words:
        below.note_break()
        return
    tag = _TAG.match(words[0]) if len(words) == 1 else None
    if tag or words == [_CLOSING_TAG]:
        below.open(re.split(r"[_-]", tag[1]), tag[1]) if tag else below.close()
        yield Unit(words[0], tuple(words), 0.0)
        return
    is_bullet = _BULLET.match(words[0]) is not None
    if _is_heading(words) and not is_bullet:
        if not below._tag:
            below.open(words)
        yield Unit(" ".join(words), tuple(words), 0.0)
        return
    below.note(words, is_bullet)
    rest = words[1:] if is_bullet and len(words) > 1 else words
    label = _label(rest)
    if label and _is_value_label(label, rest, is_system):
        below.begin_turn(label)
        yield Unit(" ".join(label), tuple(rest), 0.0, is_labelled=True)
        return
    for sentence in _sentences(rest):
        yield (
            Unit(" ".join(sentence), tuple(sentence), 0.0)
            if below.is_filled
            else _unit(sentence, below.is_value)
        )


def _is_value_label(label: Sequence[str], words: Sequence[str], is_system: bool) -> bool:
    plain = [_plain(word) for word in label]
    if not TURNS.isdisjoint(plain) or (not is_system and "task" in plain):
        return True
    return ROLE_LABELS.isdisjoint(plain) and not _instructs(words[len(label) :])


def _is_heading(words: Sequence[str]) -> bool:
    if len(words) > MAX_HEADING_WORDS:
        return False
    return (words[0].startswith("#") and words[0].strip("#") == "") or words[-1].endswith((":", ":**", "**"))


def _sentences(words: Sequence[str]) -> Iterator[Sequence[str]]:
    begin = 0
    for at, word in enumerate(words, 1):
        if word.endswith(_ENDS):
            yield words[begin:at]
            begin = at
    if begin < len(words):
        yield words[begin:]


def _unit(words: Sequence[str], is_below_value: bool) -> Unit:
    label = _label(words)
    instructs = _instructs(words[len(label) :])
    if label and not instructs and not any(_plain(word) in ROLE_LABELS for word in label):
        return Unit(" ".join(label), tuple(words), 0.0, is_labelled=True)
    is_value = words[0][:1] in '{["' or _tells_of_people(words) or (is_below_value and not instructs)
    return Unit(" ".join(words), tuple(words), 0.0 if is_value else 1.0, instructs=instructs)


def _label(words: Sequence[str]) -> Sequence[str]:
    """Return the words up to a colon; empty without a colon near the beginning or without text behind it."""
    for at, word in enumerate(words[:MAX_LABEL_WORDS], 1):
        if word.endswith((":", ":**")) and at < len(words):
            return words[:at]
        if word.endswith(("=", "=>", "->")) and at < len(words):
            return words[:at]
    return ()


def _plain(word: str) -> str:
    return word.strip("#*:.,;!?<>()[]\"'`_").lower()


def _instructs(words: Sequence[str]) -> bool:
    """True for a sentence that tells the reader to do or to be something."""
    plain = [_plain(word) for word in words]
    is_code = words[0].isupper() and len(words[0]) > 2  # ``SELECT name ...``
    if (_is_verb(plain[0]) and not is_code) or not ADDRESSES.isdisjoint(plain):
        return True
    # ``If there is none, say so``: a verb behind a comma
    return any(_is_verb(word) and words[at].endswith((",", ";", ":")) for at, word in enumerate(plain[1:]))


def _is_verb(word: str) -> bool:
    return word in VERBS or is_action(word)


def _tells_of_people(words: Sequence[str]) -> bool:
    """True for statements such as ``The customer has the Pro plan`` and ``Today is Monday``."""
    first, *others = (_plain(word) for word in words[:6])
    if _TALKS.match(" ".join((first, *others))):
        return True
    if first in THEY or first in TIMES or first in TELLS:
        return True
    if _instructs(words):
        return False
    if not PEOPLE.isdisjoint((first, *others[:2])) or (
        first in ("the", "current") and not DATES.isdisjoint(others[:1])
    ):
        return True
    is_name = words[0][:1].isupper() and first not in STARTERS and not is_action(first)
    verbs = others[1:2] if len(words) > 1 and words[1][:1].isupper() else others[:1]
    return is_name and any(verb in TELLS_OF_NAMED for verb in verbs)
