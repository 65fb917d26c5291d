"""Parts of the vLLM benchmark, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce
from benchmarks.harness.process import in_fresh_process
from benchmarks.vllm.options import HEAD, V2_SCENARIOS
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import Engine

Measured = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files that some parts need.

    Attributes:
        traces: folder of recorded calls, for propose.
        head: folder of an EAGLE-3 head, for v2_hybrid.
    """

    traces: Path | None = None
    head: Path = HEAD


def measure(name: str, engine: Engine, sizes: Sizes, inputs: Inputs, announce: Announce) -> Measured:
    """Return one part's figures; servers write their logs into a temporary folder.

    Raises:
        AgentSpecError: a requirement is missing, or a server failed.
    """
    if name == "propose":
        return _propose(sizes, inputs.traces, announce)
    with tempfile.TemporaryDirectory() as folder:
        if name == "v2_hybrid":
            from benchmarks.vllm import hybrid

            return hybrid.measure(inputs.head, sizes, Path(folder), announce)
        return _served(name)(engine, sizes, Path(folder), announce)


def _served(name: str) -> Callable[[Engine, Sizes, Path, Announce], Measured]:
    from benchmarks.vllm import lossless, no_repeat, runner_v2, soak, sql, steps, warm
    from benchmarks.vllm.scenarios import SCENARIOS

    if name in V2_SCENARIOS:
        return partial(runner_v2.measure_scenario, SCENARIOS[V2_SCENARIOS.index(name)])
    return {
        "lossless": lossless.measure,
        "sql": sql.measure,
        "v2": runner_v2.measure,
        "no_repeat": no_repeat.measure,
        "steps": steps.measure,
        "warm": warm.measure,
        "soak": soak.measure,
    }[name]


def _propose(sizes: Sizes, traces: Path | None, announce: Announce) -> Measured:
    if traces is None:
        raise ConfigError("the part 'propose' drafts from recorded outputs: give --traces DIR")
    from benchmarks.vllm import propose

    announce("propose, in a fresh process")
    return in_fresh_process(propose.measure, traces, sizes)
