"""Gain as a function of draft tokens, interpolated between the settings that were run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One setting.

    Attributes:
        drafted: draft tokens per step.
        gained: accepted draft tokens per step, or tokens per step.
    """

    drafted: float
    gained: float


class Curve:
    """Straight lines from point to point, ordered by draft tokens. Undefined beyond the last point.

    Args:
        at_zero: gain without drafts: 0 accepted draft tokens, or 1 token per step.
    """

    def __init__(self, points: Iterable[Point], at_zero: float = 0.0) -> None:
        self._points = [Point(0.0, at_zero), *sorted(points)]

    def gained(self, drafted: float) -> float | None:
        """Return the gain per step at a number of draft tokens per step, or None beyond the last point."""
        for left, right in pairwise(self._points):
            if left.drafted <= drafted <= right.drafted:
                return _between(drafted, left.drafted, right.drafted, left.gained, right.gained)
        return None

    def drafted(self, gained: float) -> float | None:
        """Return the fewest draft tokens per step that reach a gain, or None if no point reaches it."""
        for left, right in pairwise(self._points):
            if left.gained <= gained <= right.gained:
                return _between(gained, left.gained, right.gained, left.drafted, right.drafted)
        return None


def _between(x: float, left: float, right: float, at_left: float, at_right: float) -> float:
    if left == right:
        return at_left
    return at_left + (at_right - at_left) * (x - left) / (right - left)
