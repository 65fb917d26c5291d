"""Templates: the words that a group of prompts has in common, and their detection in other prompts.

This module handles words only, not stages or requests. Prompts are compared by anchors, which are words that
occur once in both. A comparison takes O(n log n) for any n words. A slot is the text between common words.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SLOT = "<...>"
MIN_WORDS = 3
MIN_WORDS_OF_LONG = 12  # this many common words are never a coincidence, however long the slots
MIN_SHARE = 0.4  # with fewer common words, their least share of the text
MIN_MATCH = 0.8
MIN_RUN = 3  # in a template of many words, shorter runs are a coincidence
MAX_RUNS = 32  # each is searched for in every new prompt
SKETCH_SIZE = 384
MOST_VALUES = 8
MOST_VALUE_CHARS = 200
ENOUGH_PROMPTS = 40
ENOUGH_OF_EACH = 3

Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class Template:
    """Runs of words that similar prompts have in common, in order.

    Attributes:
        runs: runs with a space at both ends, as they are searched for in a text with such spaces.
        num_words: number of words in all runs.
        least_share: share of common words in the longest founder. A prompt with less than half of it does
            not match.
    """

    runs: tuple[str, ...]
    num_words: int
    least_share: float

    @classmethod
    def of(cls, texts: Sequence[str]) -> Template | None:
        """Return the template of two or more texts; None if they have too little in common."""
        words = [text.split() for text in texts]
        common = words[0]
        for other in words[1:]:
            common = _broken(common, other)
        return cls._of_runs(_runs(common), words)

    @classmethod
    def _of_runs(cls, runs: list[list[str]], founders: Sequence[Words]) -> Template | None:
        if sum(map(len, runs)) >= 8 * MIN_RUN:
            runs = [run for run in runs if len(run) >= MIN_RUN]
        if len(runs) > MAX_RUNS:
            shortest = sorted(map(len, runs))[-MAX_RUNS]
            runs = [run for run in runs if len(run) >= shortest][:MAX_RUNS]
        num_words = sum(map(len, runs))
        sizes = sorted(map(len, founders))
        is_enough = num_words >= MIN_WORDS_OF_LONG or num_words >= MIN_SHARE * sizes[len(sizes) // 2]
        if num_words < MIN_WORDS or not is_enough:
            return None
        return cls(tuple(f" {' '.join(run)} " for run in runs), num_words, num_words / sizes[-1])

    @property
    def text(self) -> str:
        """The runs as readable text, with marks for the slots between them."""
        return f" {SLOT} ".join(run.strip() for run in self.runs)

    def values_in(self, text: str) -> list[str]:
        """Return the texts before, between and after the runs; empty if a run is missing."""
        values, place = [], 0
        for run in self.runs:
            at = text.find(run, place)
            if at < 0:
                return []
            values.append(text[place:at].strip())
            place = at + len(run) - 1
        return [*values, text[place:].strip()]

    def with_value(self, place: int, value: str) -> Template:
        """Return the narrower template that has ``value`` in the slot ``place``."""
        around = (self.runs[place - 1] if place else "", value, *self.runs[place : place + 1])
        run = f" {' '.join(part.strip() for part in around if part)} "
        runs = (*self.runs[: max(place - 1, 0)], run, *self.runs[place + 1 :])
        return Template(runs, self.num_words + len(value.split()), self.least_share)

    def num_words_in(self, text: str) -> int:
        """Return the number of the template's words in ``text``; 0 without a match. O(len(text)) per run.

        ``text`` has a space at both ends. The runs must occur in order. A few may be missing, since the
        founders may have had some in common by chance.
        """
        place, found = 0, self.num_words
        for run in self.runs:
            at = text.find(run, place)
            if at >= 0:
                place = at + len(run) - 1  # the last space may be the first of the next run
                continue
            found -= run.count(" ") - 1
            if found < MIN_MATCH * self.num_words:
                return 0
        return found if 2 * found >= self.least_share * (text.count(" ") - 1) else 0


class Slots:
    """Counts of the values in a template's slots, to find a slot with a few recurring values.

    Such a slot identifies the stage of a prompt. Keeps at most ``MOST_VALUES`` values per slot.
    """

    def __init__(self) -> None:
        self._num_prompts = 0
        self._values: dict[int, Counter[str]] = {}
        self._open: set[int] = set()

    def note(self, values: Sequence[str]) -> None:
        """Count the slot values of one more prompt."""
        self._num_prompts += 1
        for place, value in enumerate(values):
            if place not in self._open:
                counts = self._values.setdefault(place, Counter())
                counts[value] += 1
                if len(counts) > MOST_VALUES or len(value) > MOST_VALUE_CHARS:
                    del self._values[place]
                    self._open.add(place)

    def deciding_slot(self) -> tuple[int, list[str]] | None:
        """Return the first slot with few values, and these values.

        None if there is no such slot, if no other slot varies freely, or if too few prompts were counted.
        """
        if self._num_prompts < ENOUGH_PROMPTS or not self._open:
            return None
        for place, counts in self._values.items():
            if len(counts) > 1 and min(counts.values()) >= ENOUGH_OF_EACH and "" not in counts:
                return place, sorted(counts)
        return None


@dataclass(frozen=True, slots=True)
class Sketch:
    """A small sample of the word pairs of a text, for fast comparison of many texts.

    The sample has the pairs with the lowest hashes, so that samples are comparable (bottom-k sketches,
    Broder 1997). Hashes are valid in this process only.
    """

    pairs: frozenset[int]
    num_pairs: int

    @classmethod
    def of(cls, text: str) -> Sketch:
        """Return the sketch of a masked text."""
        words = text.split()
        pairs = set(map(hash, zip(["", *words], [*words, ""], strict=True)))
        lowest = sorted(pairs)[:SKETCH_SIZE] if len(pairs) > SKETCH_SIZE else pairs
        return cls(frozenset(lowest), len(pairs))

    def num_common(self, other: Sketch) -> float:
        """Estimate the number of word pairs that both texts have."""
        # common pairs are in the sample of the longer text, which has the lower sampling rate
        rate = min(SKETCH_SIZE / max(self.num_pairs, other.num_pairs, 1), 1)
        return len(self.pairs & other.pairs) / rate


def _broken(common: Words, other: Words) -> list[str]:
    """Return ``common`` without the words that ``other`` lacks, with a slot between the remaining runs."""
    result: list[str] = []
    for begin, end in _blocks(common, other):
        if result:
            result.append(SLOT)
        result.extend(common[begin:end])
    return result


def _runs(words: Iterable[str]) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for word in words:
        if word == SLOT:
            runs.append([])
        else:
            runs[-1].append(word)
    return [run for run in runs if run]


def _blocks(left: Words, right: Words) -> list[tuple[int, int]]:
    """Return the (begin, end) in ``left`` of the runs that ``right`` has in the same order."""
    blocks: list[tuple[int, int]] = []
    left_end = right_end = 0  # of the last block
    for i, j in _in_order(_anchors(left, right)):
        if i < left_end or j < right_end:
            continue  # inside the last block
        begin, end, offset = i, i + 1, j - i
        while begin > left_end and begin + offset > right_end and _same(left, right, begin - 1, offset):
            begin -= 1
        while end < len(left) and end + offset < len(right) and _same(left, right, end, offset):
            end += 1
        blocks.append((begin, end))
        left_end, right_end = end, end + offset
    return blocks


def _same(left: Words, right: Words, at: int, offset: int) -> bool:
    return left[at] == right[at + offset] and left[at] != SLOT


def _anchors(left: Words, right: Words) -> list[tuple[int, int]]:
    """Return the pairs of positions of words that occur once in both, ordered by that in ``left``."""
    once_left, once_right = _once(left), _once(right)
    return [(i, once_right[word]) for word, i in once_left.items() if word in once_right]


def _once(words: Words) -> dict[str, int]:
    counts = Counter(words)
    return {word: place for place, word in enumerate(words) if counts[word] == 1 and word != SLOT}


def _in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of ``pairs`` with rising second numbers; the first ones rise already."""
    tails: list[int] = []  # lowest last number of a rising subsequence, by length
    at_tail: list[int] = []
    before: list[int] = []
    for index, (_, second) in enumerate(pairs):
        length = bisect_left(tails, second)
        before.append(at_tail[length - 1] if length else -1)
        tails[length : length + 1] = [second]
        at_tail[length : length + 1] = [index]
    chosen, index = [], at_tail[-1] if at_tail else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]
