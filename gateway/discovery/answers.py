"""Judges by a cluster's answers whether the cluster mixes two stages.

Answers of one stage begin alike, so that one answer yields drafts for another. An answer is kept as digests
of the n-grams of its first words, without n-grams of its own prompt: the prompt yields drafts for these, and
most are a user's values. The *coverage* of answers by other answers is the share of their n-grams that the
others have. No text of an answer is kept.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from agentspec.gateway.discovery.templates import Mark

HEAD_WORDS = 24
NUM_GRAM = 3
MAX_HEAD_CHARS = 2048
MAX_KEPT = 48
MAX_SAMPLE_CHARS = 1 << 16  # limit of the sample's masked prompts in all
JUDGED_EVERY = 8  # the sample is judged each time after this many added answers
THINNED = 4  # with a full sample, one of this many answers replaces the oldest
MAX_OF_CONVERSATION = 4
FEWEST = 8  # answers needed on each side of a division
FEWEST_CONVERSATIONS = 3
LEAST_OWN = 0.3  # least coverage within a stage; with less, the answers are too diverse to judge
LEAST_OF_PART = 0.1
APART_SHARE = 0.2  # two stages if the coverage across is less than this share of the coverage within
MAX_PROMPT_CHARS = 8192  # kept at each end of a prompt
_WORD = re.compile(r"\w+|[^\w\s]")
_PROMPT_FIELDS = ("system", "instructions", "messages", "input", "prompt")


@dataclass(frozen=True, slots=True)
class Answer:
    """The beginning of an answer, as digests.

    Attributes:
        grams: digests of its first n-grams.
        opening: hash that identifies its conversation.
        words: masked prompt; empty if the sample has no room for it.
    """

    grams: Sequence[int]
    opening: int
    words: str = field(repr=False)

    @classmethod
    def of(cls, text: str, prompt: str, static: str, opening: int, words: str, key: bytes) -> Answer:
        """Digest an answer's first words. ``static`` is the common text of the stage's prompts."""
        known = _WORD.findall(prompt)
        own = set(zip(*(known[at:] for at in range(NUM_GRAM)), strict=False))
        names = {word for word in known if not word.islower() and word[0].isalnum()}
        names -= set(_WORD.findall(static))
        found = _WORD.findall(text[:MAX_HEAD_CHARS])
        head = ["#" if word in names or word.isdigit() else word for word in found[:HEAD_WORDS]]
        padded = [*("",) * (NUM_GRAM - 1), *head, *("",) * (len(found) < HEAD_WORDS)]
        grams = {
            tuple(padded[at : at + NUM_GRAM])
            for at in range(len(padded) - NUM_GRAM + 1)
            if tuple(found[max(at - NUM_GRAM + 1, 0) : at + 1]) not in own
        }
        return cls(array("Q", (_digest(gram, key) for gram in grams)), opening, words)


def _digest(gram: tuple[str, ...], key: bytes) -> int:
    raw = blake2b("\0".join(gram).encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest()
    return int.from_bytes(raw, "little")


@dataclass(slots=True)
class Answers:
    """A sample of a cluster's answers: the first ones; later, one of ``THINNED`` replaces the oldest."""

    num_heard: int = 0
    num_taken: int = 0
    kept: list[Answer] = field(default_factory=list)

    def wants_next(self, opening: int) -> bool:
        """Count an answer of a conversation. Return True if the caller has to add it to the sample."""
        self.num_heard += 1
        is_due = len(self.kept) < MAX_KEPT or self.num_heard % THINNED == 0
        return is_due and self._has_room(opening)

    def add(self, answer: Answer) -> bool:
        """Add an answer. Return True if the sample has to be judged now."""
        if not self._has_room(answer.opening):
            return False
        prompts = {one.words: one.words for one in self.kept}
        is_full = sum(map(len, prompts)) + len(answer.words) > MAX_SAMPLE_CHARS
        words = prompts.get(answer.words, "" if is_full else answer.words)
        answer = replace(answer, words=words)
        if len(self.kept) < MAX_KEPT:
            self.kept.append(answer)
        else:
            self.kept[self.num_taken % MAX_KEPT] = answer
        self.num_taken += 1
        return self.num_taken % JUDGED_EVERY == 0

    def _has_room(self, opening: int) -> bool:
        return sum(one.opening == opening for one in self.kept) < MAX_OF_CONVERSATION

    def dividing_mark(self, marks_of: Callable[[str], Iterable[Mark]]) -> Mark | None:
        """Return a mark that divides the sample: answers to prompts with and without it have few n-grams in
        common.
        """
        kept = [one for one in self.kept if one.words]
        marks = {words: frozenset(marks_of(words)) for words in {one.words for one in kept}}
        counts = Counter(mark for one in kept for mark in marks[one.words])
        dividing = (
            mark
            for mark, count in counts.items()
            if FEWEST <= count <= len(kept) - FEWEST
            and _are_apart(
                [one for one in kept if mark in marks[one.words]],
                [one for one in kept if mark not in marks[one.words]],
            )
        )
        return min(dividing, default=None)  # the same one in every process


def coverage(answers: Sequence[Answer], others: Sequence[Answer]) -> float:
    """Return the mean share of n-grams that ``others`` of other conversations have."""
    conversations: dict[int, int | None] = {}  # the only conversation with an n-gram; None if there are more
    for one in others:
        for gram in one.grams:
            known = conversations.setdefault(gram, one.opening)
            if known != one.opening:
                conversations[gram] = None
    shares = [
        sum(gram in conversations and conversations[gram] != one.opening for gram in one.grams)
        / len(one.grams)
        for one in answers
        if one.grams
    ]
    return sum(shares) / max(len(shares), 1)


def _is_enough(answers: Sequence[Answer]) -> bool:
    return len(answers) >= FEWEST and len({one.opening for one in answers}) >= FEWEST_CONVERSATIONS


def _are_apart(one: Sequence[Answer], two: Sequence[Answer]) -> bool:
    if not _is_enough(one) or not _is_enough(two):
        return False
    within = coverage(one, one), coverage(two, two)
    return (
        max(within) >= LEAST_OWN
        and min(within) >= LEAST_OF_PART
        and coverage(one, two) <= APART_SHARE * within[0]
        and coverage(two, one) <= APART_SHARE * within[1]
    )


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return the beginning and the end of all text of a prompt that is not the model's own."""
    text = "\n".join(part for name in _PROMPT_FIELDS for part in _texts(body.get(name)))
    return (
        text
        if len(text) <= 2 * MAX_PROMPT_CHARS
        else f"{text[:MAX_PROMPT_CHARS]}\n{text[-MAX_PROMPT_CHARS:]}"
    )


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict) and value.get("role") != "assistant":
        for name in ("content", "text", "output", "input"):
            yield from _texts(value.get(name))
