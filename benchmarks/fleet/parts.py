"""Parts of the fleet benchmark, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce
from benchmarks.fleet import costs, gain, join, outage, publish
from benchmarks.fleet.sizes import Sizes

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
