"""A plot of tokens per step by the number of replicas, with a corpus and without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.reporting import plots
from benchmarks.fleet.fleet import DEALS
from benchmarks.fleet.gain import ONE

COLOURS = {"corpus": plots.colour("learned"), "silos": plots.colour("paper-shared")}


def draw(gain: Mapping[str, Any], path: Path) -> None:
    """Plot the JSON's part "gain", one panel per way to deal calls to replicas."""
    shares = gain["of_one_engine"]
    numbers = sorted({int(name.split()[0]) for name in shares if name != ONE})
    figure, panels = plots.panels(len(DEALS))
    for axes, deal in zip(panels, DEALS, strict=True):
        for kind, colour in COLOURS.items():
            values = [1.0, *(shares[f"{number} {deal}, {kind}"] for number in numbers)]
            axes.plot(range(len(values)), values, "o-", color=colour, label=kind)
        axes.set_xticks(range(len(numbers) + 1), ["1", *map(str, numbers)])
        axes.set_ylim(0, 1.1)
        axes.set_title(f"calls dealt {deal}")
        axes.set_xlabel("replicas")
    panels[0].set_ylabel("tokens per step, of one engine's")
    plots.legend_below(figure, panels[0], len(COLOURS))
    plots.save(figure, path)
