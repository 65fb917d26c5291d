"""Plotting for the benchmarks: one style, and the same picture for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from agentspec.errors import ConfigError

COLOURS = {
    "learned": "#1f5fb4",
    "forest": "#2a9d8f",
    "paper-stage": "#e07b00",
    "paper-shared": "#c0392b",
    "paper-request": "#f2b36b",
    "paper-global": "#a8718d",
    "arctic": "#7d5ba6",
    "sam": "#6b8e23",
    "rest": "#8c8c8c",
    "recycling": "#b0a07a",
    "pld": "#4d4d4d",
    "llma": "#b8b8b8",
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


def shades(number: int) -> list[str]:
    """Return shades of one colour, from light to dark."""
    return [to_hex(colormaps["GnBu"](0.2 + 0.8 * i / max(number - 1, 1))) for i in range(number)]


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


def dots(axes: Axes, rows: Sequence[str], by_label: Mapping[str, tuple[str, Sequence[float]]]) -> None:
    """Draw a line for each row, from the top, with a dot of its own colour for each label, side by side."""
    middle = (len(by_label) - 1) / 2
    for i, (label, (colour, values)) in enumerate(by_label.items()):
        places = [row + 0.7 * (i - middle) / len(by_label) for row in range(len(rows))]
        axes.plot(values, places, "o", ms=4.5, color=colour, label=label)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    for row in range(1, len(rows), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f3f3f3", linewidth=0, zorder=0)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG or SVG."""
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
    with rc_context(STYLE):
        figure.savefig(path, dpi=120, metadata=metadata)
