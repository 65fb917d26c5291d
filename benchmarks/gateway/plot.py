"""A plot of the latency that each gateway adds, by percentile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.reporting import plots
from benchmarks.gateway.latency import ANSWER, FIRST_BYTE
from benchmarks.gateway.sides import LITELLM, OURS

TITLES = {ANSWER: "to a whole answer", FIRST_BYTE: "to a stream's first byte"}
COLOURS = {OURS: plots.colour("learned"), LITELLM: plots.colour("paper-shared")}
LEAST_MS = 0.01  # a logarithmic axis has no zero
TICKS_MS = (0.1, 1, 10, 100, 1_000, 10_000)
MARKED = (50, 90, 99, 99.9)


def draw(latency: Mapping[str, Any], path: Path) -> None:
    """Plot the JSON's part "latency", one panel per kind; the upper percentiles take most room."""
    figure, panels = plots.panels(len(TITLES), width=3.8, height=3.0)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for name, curves in latency["curves"].items():
            percentiles, added = zip(*curves[kind], strict=True)
            rate = latency["sides"][name]["rate_per_s"]
            places = [_place(one) for one in percentiles]
            shown = [max(ms, LEAST_MS) for ms in added]
            axes.plot(places, shown, color=COLOURS[name], label=f"{name}, {rate:g} requests/s")
        axes.set_yscale("log")
        axes.set_yticks(TICKS_MS, [f"{one:g}" for one in TICKS_MS])
        axes.set_xscale("log")
        axes.set_xticks([_place(one) for one in MARKED], [f"p{one:g}" for one in MARKED])
        axes.minorticks_off()
        axes.set_title(title)
    panels[0].set_ylabel("added, ms")
    plots.legend_below(figure, panels[0], len(COLOURS))
    plots.save(figure, path)


def _place(percentile: float) -> float:
    """Return n such that one request in n is slower than the percentile."""
    return 100 / (100 - percentile)
