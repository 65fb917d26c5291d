"""``python -m benchmarks fleet``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from operator import ge, le
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.reporting import plots
from agentspec.reporting.report import Announce, Outputs
from benchmarks.fleet import costs, gain, join, outage, publish
from benchmarks.fleet.fleet import DEALS
from benchmarks.fleet.gain import ONE
from benchmarks.fleet.sizes import Sizes
from benchmarks.harness.scorecard import Bar, Parts, Scorecard

Measured = dict[str, Any]

REPLAYED: dict[str, Callable[[Path, Sizes, Announce], Measured]] = {
    "gain": gain.measure,
    "join": join.measure,
    "costs": costs.measure,
}
LIVE: dict[str, Callable[[Sizes, Announce], Measured]] = {
    "publish": publish.measure,
    "outage": outage.measure,
}


def measure(name: str, sizes: Sizes, traces: Path | None, announce: Announce) -> Measured:
    """Return one part's figures.

    Raises:
        ConfigError: a part needs recorded calls, or a server is missing.
    """
    if name in LIVE:
        return LIVE[name](sizes, announce)
    if traces is None:
        raise ConfigError(f"the part {name!r} replays recorded calls: give --traces DIR")
    return REPLAYED[name](traces, sizes, announce)


BARS = (
    Bar("16 replicas: tokens per step, of one engine's", "gain", "fleet_gain", ge, 0.96),
    Bar("the same, calls dealt by our gateway", "gain", "fleet_gain_gateway", ge, 0.97),
    Bar("publish, us, p50", "publish", "publish_us_p50", le, 20),
    Bar("publish, us, p99", "publish", "publish_us_p99", le, 100),
    Bar(
        "publish: a decode step, p99, of one without a store",
        "publish",
        "step_p99_vs_alone",
        le,
        1.05,
    ),
    Bar("the same, with ten times its own outputs", "publish", "overload_step_p99_vs_alone", le, 1.05),
    Bar("publish: errors", "publish", "num_errors", le, 0, is_summed=False),
    Bar("publish: most lag, s", "publish", "lag_s_max", le, 15, is_summed=False),
    Bar("joining 2 M tokens, s", "join", "join_s", le, 5),
    Bar("first 20 requests: accepted, of a warm engine's", "join", "join_acceptance", ge, 0.95),
    Bar("outages: errors", "outage", "outage_errors", le, 0),
    Bar("outages: added to publish, ms, p99", "outage", "outage_added_ms_p99", le, 1),
    Bar("outages: as before after, s", "outage", "outage_recovery_s", le, 10),
)


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part was not measured."""
    return {bar.figure: bar.value(parts) for bar in BARS if bar.is_summed}


CARD = Scorecard("fleet", "replicas that share what they learn", BARS, summary)


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


PACKAGES = ("redis", "zstandard", "numpy")


def run(names: Sequence[str], sizes: Sizes, traces: Path | None, outputs: Outputs) -> int:
    """Measure, update the file after each part, print the report, and return the exit status.

    Raises:
        AgentSpecError: a part's requirement is missing; earlier parts are in the file.
    """
    origin = {"packages": {name: version(name) for name in PACKAGES}, "sizes": asdict(sizes)}
    return CARD.run(
        names,
        lambda name, announce: measure(name, sizes, traces, announce),
        lambda: origin,
        outputs,
        _plot,
    )


def _plot(measured: Parts, path: Path) -> None:
    if "gain" in measured:
        draw(measured["gain"], path)
