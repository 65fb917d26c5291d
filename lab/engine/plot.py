"""Time per output token by stage, a dot for each method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentspec.reporting import plots
from lab.engine.methods import METHODS, NGRAM, OFF, OURS
from lab.plots import dots

COLOURS = {OFF: "black", NGRAM: plots.colour("pld"), OURS: plots.colour("learned")}


def draw(figures: Mapping[str, Mapping[str, Mapping[str, float]]], name: str, path: Path) -> None:
    """Plot the report's figures."""
    height = 1.2 + 0.3 * len(figures)
    figure, (axes,) = plots.panels(1, width=5.2, height=height)
    by_method = {
        method: (COLOURS[method], [one[method]["tpot_ms"] for one in figures.values()]) for method in METHODS
    }
    dots(axes, list(figures), by_method)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms per output token")
    axes.set_title(name)
    plots.legend_below(figure, axes, len(METHODS))
    plots.save(figure, path)
