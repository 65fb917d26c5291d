"""The hybrid against its parts at equal numbers of draft tokens: each at several prices of a draft token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from agentspec.replay.curve import Curve, Point
from benchmarks.methods.methods import METHODS, OFF, Method

Figures = dict[str, Any]

PRICES = (0.6, 0.35, 0.2, 0.1, 0.05)
HYBRID, TREES, MODEL = "hybrid", "learned", "eagle-3"
COMPARED = (HYBRID, TREES, MODEL)


def at_prices() -> dict[str, Method]:
    """Return no speculation, and each compared method at each price."""
    priced = {
        named(key, price): replace(METHODS[key], draft=replace(METHODS[key].draft, min_prob=price))
        for key in COMPARED
        for price in PRICES
    }
    return {OFF: METHODS[OFF], **priced}


def named(method: str, price: float) -> str:
    """Return the name of a method at a price."""
    return f"{method} at {price:g}"


def against_parts(served: Mapping[str, Mapping[str, float]]) -> Figures:
    """Return the hybrid's tokens per step relative to those of the better part with as many draft tokens.

    Mean and least over the prices. Between two prices of a part, lines are straight. Prices at which the
    hybrid drafts more than either part ever does are left out. None if that is all of them.
    """
    parts = [
        Curve((_point(served[named(part, price)]) for price in PRICES), at_zero=1.0)
        for part in (TREES, MODEL)
    ]
    ratios = []
    for price in PRICES:
        hybrid = _point(served[named(HYBRID, price)])
        reached = [curve.gained(hybrid.drafted) for curve in parts]
        if best := max((one for one in reached if one is not None), default=None):
            ratios.append(hybrid.gained / best)
    return {
        "hybrid_vs_best_part_mean": fmean(ratios) if ratios else None,
        "hybrid_vs_best_part_min": min(ratios, default=None),
        "num_prices": len(ratios),
    }


def _point(served: Mapping[str, float]) -> Point:
    return Point(served["drafted_per_step"], served["tokens_per_step"])
