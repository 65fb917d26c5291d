"""Plots of reports: one style, and the same picture for the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentspec.errors import ConfigError

COLOURS = {
    "learned": "#1f5fb4",
    "forest": "#2a9d8f",
    "paper-stage": "#e07b00",
    "paper-shared": "#c0392b",
    "pld": "#4d4d4d",
}
ENDINGS = (".png", ".svg")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "agentspec",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def colour(method: str) -> str:
    """Return a method's colour, which is the same in every picture."""
    return COLOURS.get(method, "black")


def check(path: Path | None) -> None:
    """Raise ConfigError if the file's format is not supported."""
    if path is not None and path.suffix not in ENDINGS:
        raise ConfigError(f"a plot's name ends with {' or '.join(ENDINGS)}, not {path.name!r}")


def panels(columns: int, rows: int = 1, width: float = 3.2, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``columns`` x ``rows`` panels, and the panels row by row.

    Width and height are those of one panel, in inches.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.grid(visible=True, alpha=0.25, linewidth=0.6)
        one.set_axisbelow(True)
    return figure, list(axes.flat)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Add one legend for all panels, with the entries of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    with rc_context(STYLE):
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG or SVG."""
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
    with rc_context(STYLE):
        figure.savefig(path, dpi=120, metadata=metadata)
