"""Templates: the words that a group of prompts has in common, and the search for them in other prompts.

This module handles words, not stages or requests. Prompts are compared by anchors: words that occur once in
both. A comparison takes O(n log n) for any n words. A slot is the text between common words.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentspec.gateway.discovery.masking import LINE, PARAGRAPH, joined

Mark = tuple[str, int]  # a text with spaces at both ends, and its least number of occurrences
SLOT = "<...>"
MIN_WORDS = 3
MIN_WORDS_OF_LONG = 12  # this many common words are no coincidence, even with long slots
MIN_SHARE = 0.4  # with fewer common words: their least share of the text
MIN_MATCH = 0.8
MIN_RUN = 3  # in a template of many words, a shorter run is a coincidence
MAX_RUNS = 32  # limit, since each new prompt is searched for every run

Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class Template:
    """Runs of words that similar prompts have in common, in order.

    Attributes:
        runs: the runs, each with a space at both ends, for the search in a text with such spaces.
        num_words: number of words in all runs.
        least_share: share of common words in the longest first prompt. A prompt with less than half of this
            share does not match. Negative in a :meth:`divided` template: minus the number of occurrences of
            its last run, which is the mark.
    """

    runs: tuple[str, ...]
    num_words: int
    least_share: float

    searched: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepare the runs for the search, without line ends."""
        runs = self.runs if self.mark is None else self.runs[:-1]
        object.__setattr__(self, "searched", tuple(f" {joined(run).strip()} " for run in runs))

    @classmethod
    def of_common(cls, common: Sequence[str], longest: int) -> Template | None:
        """Return the template of texts with these common words, which have marks for the gaps.

        Returns None if the words are too few. ``longest`` is the number of words of the longest text.
        """
        runs = _runs(common)
        if sum(map(_num_words, runs)) >= 8 * MIN_RUN:
            runs = [run for run in runs if _num_words(run) >= MIN_RUN]
        if len(runs) > MAX_RUNS:
            shortest = sorted(map(len, runs))[-MAX_RUNS]
            runs = [run for run in runs if len(run) >= shortest][:MAX_RUNS]
        num_words = sum(map(_num_words, runs))
        is_enough = num_words >= MIN_WORDS_OF_LONG or num_words >= MIN_SHARE * longest
        if num_words < MIN_WORDS or not is_enough:
            return None
        return cls(
            tuple(f" {' '.join(run)} " for run in runs), num_words, num_words / max(longest, num_words)
        )

    def divided(self, mark: Mark) -> Template:
        """Return the template of prompts that ``mark`` divides into two stages."""
        needle, count = mark
        return Template((*self.runs, needle), self.num_words, -float(count))

    @property
    def mark(self) -> Mark | None:
        """The mark that divides the template's prompts into two stages; None if they are of one stage."""
        return (self.runs[-1], int(-self.least_share)) if self.least_share < 0 else None

    @property
    def text(self) -> str:
        """The runs as readable text, with marks for the slots between them."""
        return f" {SLOT} ".join(run.strip() for run in self.runs).replace(f" {LINE} ", LINE)

    def num_words_in(self, text: str) -> int:
        """Return the number of the template's words in ``text``; 0 without a match. O(len(text)) per run.

        ``text`` has a space at both ends, and no line ends. The runs must occur in order. A few short runs
        may be missing, since the first texts may have shared them by chance.
        """
        place, found = 0, self.num_words
        for run in self.searched:
            at = text.find(run, place)
            if at >= 0:
                place = at + len(run) - 1  # the last space may also be the first one of the next run
                continue
            num_words = run.count(" ") - 1
            found -= num_words
            if num_words >= MIN_RUN or found < MIN_MATCH * self.num_words:
                return 0
        if self.num_words < MIN_WORDS_OF_LONG and 2 * found < self.least_share * (text.count(" ") - 1):
            return 0  # the text is much longer: of another kind
        return found


def common_words(common: Words, other: Words) -> list[str]:
    """Return ``common`` without the words that ``other`` lacks, with a mark for each gap."""
    result: list[str] = []
    for begin, end, _ in blocks(common, other):
        if result:
            result.append(SLOT)
        result.extend(common[begin:end])
    return result


def _num_words(run: Words) -> int:
    return sum(word not in (LINE, PARAGRAPH) for word in run)


def _runs(words: Iterable[str]) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for word in words:
        if word == SLOT:
            runs.append([])
        else:
            runs[-1].append(word)
    return [run for run in runs if _num_words(run)]


def blocks(left: Words, right: Words) -> list[tuple[int, int, int]]:
    """Return the runs of ``left`` that ``right`` contains in the same order. O(n log n) for n words.

    Each run is (begin in ``left``, end in ``left``, begin in ``right`` minus begin in ``left``).
    """
    found: list[tuple[int, int, int]] = []
    left_end = right_end = 0  # ends of the last block
    for i, j in _in_order(_anchors(left, right)):
        if i < left_end or j < right_end:
            continue  # within the last block
        begin, end, offset = i, i + 1, j - i
        while begin > left_end and begin + offset > right_end and _same(left, right, begin - 1, offset):
            begin -= 1
        while end < len(left) and end + offset < len(right) and _same(left, right, end, offset):
            end += 1
        found.append((begin, end, offset))
        left_end, right_end = end, end + offset
    return found


def _same(left: Words, right: Words, at: int, offset: int) -> bool:
    return left[at] == right[at + offset] and left[at] != SLOT


def _anchors(left: Words, right: Words) -> list[tuple[int, int]]:
    """Return the positions of words, and of pairs of words, that occur once in each text."""
    once_left, once_right = _once(left), _once(right)
    return sorted({(i, once_right[one]) for one, i in once_left.items() if one in once_right})


def _once(words: Words) -> dict[object, int]:
    """Return the positions of words and pairs that occur once, except marks."""
    found: dict[object, int] = {}
    again: set[object] = {SLOT}
    for at, one in enumerate(words):
        for key in (one, (one, words[at + 1])) if at + 1 < len(words) else (one,):
            if key in found:
                again.add(key)
            found[key] = at
    return {
        one: at
        for one, at in found.items()
        if one not in again and not (isinstance(one, tuple) and SLOT in one)
    }


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
