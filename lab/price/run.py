"""``python -m lab price``: a part for each shape, and the bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from operator import ge
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from agentspec.reporting.report import Outputs
from benchmarks.harness.scorecard import Bar, Parts, Scorecard
from lab.price.measure import measure
from lab.price.options import SHAPES
from lab.price.sizes import Sizes

NONE, FIXED = "price_vs_none_min", "price_vs_best_fixed_mean"
MOST_LOST = 0.02

BARS = tuple(
    bar
    for shape in SHAPES
    for bar in (
        Bar(f"{shape}: speed by that without drafts, least", shape, NONE, ge, 1 - MOST_LOST),
        Bar("  by that of the best fixed price, mean", shape, FIXED, ge, 1.0),
        Bar("  outputs as recorded", shape, "outputs_identical", ge, True),
    )
)


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare, over the shapes that were measured."""
    found = [parts[shape] for shape in SHAPES if shape in parts]
    return {
        NONE: min((part[NONE] for part in found), default=None),
        FIXED: mean(part[FIXED] for part in found) if found else None,
        "outputs_identical": all(part["outputs_identical"] for part in found),
        "shapes": len(found),
    }


CARD = Scorecard("price", "the learned price of a draft token", BARS, summary)


def run(names: Sequence[str], traces: Path, sizes: Sizes, outputs: Outputs) -> int:
    """Measure, print the report, and return the exit status.

    Raises:
        ConfigError: a file can't be written, or the folder lacks a set or calls of it.
    """
    outputs.check()
    origin = {"sizes": asdict(sizes), "calls": SHAPES, "torch": torch.__version__}
    return CARD.run(
        names,
        lambda name, announce: measure(name, traces, sizes, SHAPES[name], announce),
        lambda: origin,
        outputs,
    )
