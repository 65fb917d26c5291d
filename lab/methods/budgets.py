"""The hybrid against its parts at equal numbers of draft tokens: each at several prices of a draft token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from lab.methods.methods import METHODS, OFF, Method
from lab.replay.curve import Curve, Point

Figures = dict[str, Any]

PRICES = (0.6, 0.35, 0.2, 0.1, 0.05)
TREES = "learned"
HYBRID, HYBRID_OF_DRAFT_MODEL = "hybrid", "hybrid, draft model"
MODELS = {HYBRID: "eagle-3", HYBRID_OF_DRAFT_MODEL: "draft model"}  # the hybrids' other parts


def at_prices(hybrid: str = HYBRID) -> dict[str, Method]:
    """Return no speculation, and a hybrid and both of its parts at each price."""
    priced = {
        named(key, price): replace(METHODS[key], draft=replace(METHODS[key].draft, min_prob=price))
        for key in (hybrid, TREES, MODELS[hybrid])
        for price in PRICES
    }
    return {OFF: METHODS[OFF], **priced}


def named(method: str, price: float) -> str:
    """Return the name of a method at a price."""
    return f"{method} at {price:g}"


def against_parts(served: Mapping[str, Mapping[str, float]], hybrid: str = HYBRID) -> Figures:
    """Return the hybrid's tokens per step relative to those of the better part with as many draft tokens.

    Mean and least over the prices. Between two prices of a part, lines are straight. Prices at which the
    hybrid drafts more than either part ever does are left out. None if that is all of them. The same relative
    to the trees by themselves, with as many draft tokens, and at the same price, whatever either drafts.
    """
    parts = [
        Curve((_point(served[named(part, price)]) for price in PRICES), at_zero=1.0)
        for part in (TREES, MODELS[hybrid])
    ]
    ratios, to_trees, at_same_price = [], [], []
    for price in PRICES:
        both = _point(served[named(hybrid, price)])
        at_same_price.append(both.gained / _point(served[named(TREES, price)]).gained)
        reached = [curve.gained(both.drafted) for curve in parts]
        if best := max((one for one in reached if one is not None), default=None):
            ratios.append(both.gained / best)
        if reached[0] is not None:
            to_trees.append(both.gained / reached[0])
    return {
        "hybrid_vs_best_part_mean": fmean(ratios) if ratios else None,
        "hybrid_vs_best_part_min": min(ratios, default=None),
        "num_prices": len(ratios),
        "hybrid_vs_trees_at_equal_drafts_mean": fmean(to_trees) if to_trees else None,
        "hybrid_vs_trees_at_the_same_price_mean": fmean(at_same_price),
    }


def _point(served: Mapping[str, float]) -> Point:
    return Point(served["drafted_per_step"], served["tokens_per_step"])
