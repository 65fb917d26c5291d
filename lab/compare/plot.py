"""Plot of the comparison: one panel for each data set, and one for the calibration of the estimates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from agentspec.reporting import plots
from lab.compare.compare import Figures
from lab.compare.trials import LEARNED, PAPER

COLUMNS = 4
LEAST_ESTIMATES = 100  # minimum in a bin for it to be drawn
MARKERS = {1.0: "o", 4.0: "s"}  # by alpha


def plot(figures: Figures, path: Path) -> None:
    """Plot accepted against drafted tokens per step, and the calibration of the learned rule."""
    rows = -(-(len(figures) + 1) // COLUMNS)
    figure, axes = plots.panels(min(COLUMNS, len(figures) + 1), rows, width=3.0, height=2.5)
    for one, (name, measured) in zip(axes, figures.items(), strict=False):
        _draw_trade(one, measured)
        one.set(title=name, xlabel="draft tokens per step", ylabel="accepted per step")
    _draw_calibration(axes[len(figures)], figures)
    for spare in axes[len(figures) + 1 :]:
        spare.set_axis_off()
    plots.legend_below(figure, axes[0], 5)
    plots.save(figure, path)


def _draw_trade(axes: Axes, measured: Mapping[str, Any]) -> None:
    chains = [
        point
        for point in measured["points"]
        if point["mode"] == "chain" and point["by_stage"] and not point["is_limited"]
    ]
    curve = sorted(
        (point["drafted_per_step"], point["accepted_per_step"])
        for point in chains
        if point["method"] == LEARNED and not point["is_distracted"]
    )
    axes.plot(*zip(*curve, strict=True), ".-", color=plots.colour(LEARNED), label="learned, by price")
    for point in chains:
        if point["method"] in PAPER:
            axes.plot(
                point["drafted_per_step"],
                point["accepted_per_step"],
                MARKERS[point["alpha"]],
                ms=5,
                color=plots.colour(point["method"]),
                label=f"{point['method']}, alpha {point['alpha']:g}",
            )
    axes.set(xlim=(0, None), ylim=(0, None))


def _draw_calibration(axes: Axes, figures: Figures) -> None:
    """Draw a line for each data set. On the diagonal, estimates equal the observed shares."""
    axes.plot((0, 1), (0, 1), "--", color="black", linewidth=0.8)
    for measured in figures.values():
        bins = [one for one in measured["calibration"] if one["num"] >= LEAST_ESTIMATES]
        axes.plot(
            [one["expected"] for one in bins],
            [one["observed"] for one in bins],
            ".-",
            color=plots.colour(LEARNED),
            linewidth=0.8,
            ms=4,
            alpha=0.5,
        )
    axes.set(title="calibration, all sets", xlabel="estimated probability", ylabel="share accepted")
