"""``python -m benchmarks gateway``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from agentspec.reporting import plots
from agentspec.reporting.report import Announce, Outputs
from benchmarks.gateway import latency, soak, throughput
from benchmarks.gateway.latency import ANSWER, FIRST_BYTE
from benchmarks.gateway.quiet import Quiet
from benchmarks.gateway.sides import LITELLM, OURS, Setup
from benchmarks.gateway.sizes import Sizes
from benchmarks.harness.scorecard import Bar, Parts, Scorecard

Measured = dict[str, Any]

MEASURES: dict[str, Callable[[Setup, Sizes, Announce], Measured]] = {
    "latency": latency.measure,
    "throughput": throughput.measure,
    "soak": soak.measure,
}


MOST_MORE_FILES = 8  # connections open and close

BARS = (
    Bar("added to an answer or a first byte, ms, p50", "latency", "added_ms_p50", lt, 1.5),
    Bar("the same, p99", "latency", "added_ms_p99", lt, 5),
    Bar("of what LiteLLM adds, p50", "latency", "added_vs_litellm_p50", le, 0.2),
    Bar("the same, p99", "latency", "added_vs_litellm_p99", le, 0.2),
    Bar("latency: errors", "latency", "num_errors", le, 0),
    Bar("requests per second of a core", "throughput", "req_per_s_core", ge, 400),
    Bar("of LiteLLM's", "throughput", "req_per_s_core_vs_litellm", ge, 8),
    Bar("throughput: errors", "throughput", "num_errors", le, 0),
    Bar("soak: growth of memory", "soak", "soak_rss_growth", le, 0.02),
    Bar("soak: more open files", "soak", "open_files_growth", le, MOST_MORE_FILES),
    Bar("soak: errors that were not asked for", "soak", "num_errors", le, 0),
    Bar("soak: answers changed", "soak", "num_changed", le, 0),
)

SUMMED = {
    "added_ms_p50": "latency",
    "added_ms_p99": "latency",
    "litellm_added_ms_p50": "latency",
    "req_per_s_core": "throughput",
    "litellm_req_per_s_core": "throughput",
    "soak_rss_growth": "soak",
}


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part, or LiteLLM, was not measured."""
    return {figure: parts.get(part, {}).get(figure) for figure, part in SUMMED.items()}


CARD = Scorecard("gateway", "the gateway before an engine that answers at once", BARS, summary)


TITLES = {ANSWER: "to a whole answer", FIRST_BYTE: "to a stream's first byte"}
COLOURS = {OURS: plots.colour("learned"), LITELLM: plots.colour("paper-shared")}
LEAST_MS = 0.01  # a logarithmic axis has no zero
TICKS_MS = (0.1, 1, 10, 100, 1_000, 10_000)
MARKED = (50, 90, 99, 99.9)


def draw(measured: Mapping[str, Any], path: Path) -> None:
    """Plot the JSON's part "latency", one panel per kind; the upper percentiles take most room."""
    figure, panels = plots.panels(len(TITLES), width=3.8, height=3.0)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for name, curves in measured["curves"].items():
            percentiles, added = zip(*curves[kind], strict=True)
            rate = measured["sides"][name]["rate_per_s"]
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


PACKAGES = ("uvloop", "httptools", "uvicorn", "starlette", "httpx")
PEER_PACKAGES = ("litellm", "uvicorn", "uvloop", "fastapi", "aiohttp", "httpx")


def run(
    names: Sequence[str], sizes: Sizes, litellm: Path | None, outputs: Outputs, patience_s: float = 0.0
) -> int:
    """Measure, update the file after each part, print the report, and return the exit status.

    Up to ``patience_s`` seconds in all are spent on waiting for a quiet machine.

    Raises:
        AgentSpecError: a process did not start, or failed; earlier parts are in the file.
    """
    if litellm is None:
        print("LiteLLM is not installed, so it is not measured: make bench-gateway", file=sys.stderr)
    origin, quiet = _origin(sizes, litellm), Quiet(patience_s)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(litellm, Path(folder), quiet)
        return CARD.run(
            names,
            lambda name, announce: MEASURES[name](setup, sizes, announce),
            lambda: origin,
            outputs,
            _plot,
        )


def _plot(parts: Parts, path: Path) -> None:
    if "latency" in parts:
        draw(parts["latency"], path)


def _origin(sizes: Sizes, litellm: Path | None) -> dict[str, object]:
    return {
        "packages": {name: version(name) for name in PACKAGES},
        "peer_packages": _versions_beside(litellm) if litellm else None,
        "sizes": asdict(sizes),
    }


def _versions_beside(command: Path) -> dict[str, str]:
    """Return the versions of PEER_PACKAGES in the environment of a command."""
    code = f"from importlib.metadata import version; print(*map(version, {PEER_PACKAGES!r}))"
    python = command.parent / "python"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    return dict(zip(PEER_PACKAGES, told.split(), strict=True))
