"""Fair timing: the sides work in turn, so that other load on the machine affects all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")
Spread = dict[str, float]


class Turns:
    """Runs one action of every side, in random order, and records the seconds."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self.seconds: dict[str, list[float]] = {}

    def take(self, actions: Mapping[str, Callable[[], Result]]) -> dict[str, Result]:
        """Run the actions and return each side's result."""
        results = {}
        for side in actions:
            self.seconds.setdefault(side, [])
        for side in self._random.sample(list(actions), len(actions)):
            begin = time.perf_counter()
            results[side] = actions[side]()
            self.seconds[side].append(time.perf_counter() - begin)
        return results

    def totals_s(self) -> dict[str, float]:
        """Return each side's sum."""
        return {side: sum(seconds) for side, seconds in self.seconds.items()}

    def spreads_ms(self) -> dict[str, Spread]:
        """Return each side's distribution."""
        return {side: spread([1e3 * one for one in seconds]) for side, seconds in self.seconds.items()}


def spread(values: Sequence[float]) -> Spread:
    """Return median, 99th percentile and maximum."""
    return {
        "median": float(np.median(values)),
        "p99": float(np.percentile(values, 99)),
        "max": float(max(values)),
    }
