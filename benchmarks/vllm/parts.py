"""Parts of the vLLM benchmark, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.vllm import lossless, no_repeat, runner_v2, soak, sql
from benchmarks.vllm.options import V2_SCENARIOS
from benchmarks.vllm.scenarios import SCENARIOS
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import Engine

Measured = dict[str, Any]

MEASURES: dict[str, Callable[[Engine, Sizes, Path, Announce], Measured]] = {
    "lossless": lossless.measure,
    "sql": sql.measure,
    "v2": runner_v2.measure,
    "no_repeat": no_repeat.measure,
    "soak": soak.measure,
    **{
        name: partial(runner_v2.measure_scenario, scenario)
        for name, scenario in zip(V2_SCENARIOS, SCENARIOS, strict=True)
    },
}


def measure(name: str, engine: Engine, sizes: Sizes, announce: Announce) -> Measured:
    """Return one part's figures; servers write their logs into a temporary folder.

    Raises:
        AgentSpecError: a requirement is missing, or a server failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        return MEASURES[name](engine, sizes, Path(folder), announce)
