"""``python -m benchmarks fleet``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from agentspec.reporting.report import Outputs
from benchmarks.fleet import parts, plot
from benchmarks.fleet.report import CARD
from benchmarks.fleet.sizes import Sizes
from benchmarks.harness.scorecard import Parts

PACKAGES = ("redis", "zstandard", "numpy")


def run(names: Sequence[str], sizes: Sizes, traces: Path | None, outputs: Outputs) -> int:
    """Measure, update the file after each part, print the report, and return the exit status.

    Raises:
        AgentSpecError: a part's requirement is missing; earlier parts are in the file.
    """
    origin = {"packages": {name: version(name) for name in PACKAGES}, "sizes": asdict(sizes)}
    return CARD.run(
        names,
        lambda name, announce: parts.measure(name, sizes, traces, announce),
        lambda: origin,
        outputs,
        _plot,
    )


def _plot(measured: Parts, path: Path) -> None:
    if "gain" in measured:
        plot.draw(measured["gain"], path)
