"""Parts of the gateway benchmark by name, the longest last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.gateway import latency, soak, throughput
from benchmarks.gateway.sides import Setup
from benchmarks.gateway.sizes import Sizes

Measured = dict[str, Any]

MEASURES: dict[str, Callable[[Setup, Sizes, Announce], Measured]] = {
    "latency": latency.measure,
    "throughput": throughput.measure,
    "soak": soak.measure,
}
