"""What several experiments draw, on axes of ``agentspec.reporting.plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes


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
