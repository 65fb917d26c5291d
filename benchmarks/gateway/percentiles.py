"""The latency that a side adds to direct access, by percentile."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

Milliseconds = NDArray[np.float64]

DRAWN = (*range(1, 100), 99.5, 99.9)


def at(values: Milliseconds, percentile: float) -> float:
    """Return the given percentile of the values."""
    return float(np.percentile(values, percentile))


def added(side: Sequence[Milliseconds], direct: Sequence[Milliseconds], percentile: float) -> float:
    """Return the side's percentile less the direct one's of the same round, the median over rounds."""
    rounds = zip(side, direct, strict=True)
    return median(at(one, percentile) - at(floor, percentile) for one, floor in rounds)


def curve(side: Sequence[Milliseconds], direct: Sequence[Milliseconds]) -> list[tuple[float, float]]:
    """Return (percentile, added latency) pairs."""
    return [(percentile, added(side, direct, percentile)) for percentile in DRAWN]


def described(rounds: Sequence[Milliseconds]) -> dict[str, float]:
    """Return a side's own percentiles, medians over rounds."""
    return {f"ms_p{percentile}": median(at(one, percentile) for one in rounds) for percentile in (50, 90, 99)}
