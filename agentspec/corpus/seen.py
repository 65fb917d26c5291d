"""The sequence numbers of the records of one origin that were learned."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MOST_RANGES = 64


class SeenNumbers:
    """Numbers as sorted ranges, so that each record is applied once, in whatever order batches arrive.

    Beyond ``most_ranges`` the lowest gap is closed: its numbers count as seen, and as missing for ever.
    """

    def __init__(self, most_ranges: int = MOST_RANGES) -> None:
        self._most_ranges = most_ranges
        self._begins: list[int] = []
        self._ends: list[int] = []  # exclusive; ranges neither overlap nor touch
        self._base = 0  # the first number ever added; gaps below it are from before this time
        self._num_closed = 0

    def add(self, first: int, count: int) -> list[range]:
        """Add ``count`` numbers from ``first`` on. Return those that are new, in order."""
        if count <= 0:
            return []
        if not self._begins:
            self._base = first
        end = first + count
        low, high = bisect_left(self._ends, first), bisect_right(self._begins, end)  # these touch it
        fresh, at = [], first
        for begin_seen, end_seen in zip(self._begins[low:high], self._ends[low:high], strict=True):
            if at < begin_seen:
                fresh.append(range(at, begin_seen))
            at = max(at, end_seen)
        if at < end:
            fresh.append(range(at, end))
        self._begins[low:high] = [min([first, *self._begins[low:high]])]
        self._ends[low:high] = [max([end, *self._ends[low:high]])]
        self._close_gaps()
        return fresh

    @property
    def num_missing(self) -> int:
        """Count the numbers that never arrived, above the first one added."""
        gaps = zip(self._ends, self._begins[1:], strict=False)
        return self._num_closed + sum(begin - end for end, begin in gaps if end > self._base)

    @property
    def num_ranges(self) -> int:
        """Count the ranges: at most ``most_ranges``."""
        return len(self._begins)

    def _close_gaps(self) -> None:
        while len(self._begins) > self._most_ranges:
            if self._ends[0] > self._base:
                self._num_closed += self._begins[1] - self._ends[0]
            del self._begins[1], self._ends[0]
