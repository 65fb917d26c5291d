"""vLLM's model runner V2, asynchronously scheduled: outputs, and the drafts that it verifies, against V1's.

On a CPU the kernels of V2 are interpreted, so only counts are reported. Drafts are judged on the text-to-SQL
example with a fixed price: how many draft tokens a step accepts, and how many slots it verifies for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.vllm import lossless, sql
from benchmarks.vllm.chats import load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.scenarios import Scenario
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import OURS_FIXED, Engine, Speculator, bundled_on_runner_v2

SEED = 51
NUM_CLIENTS = 8
NUM_PARALLEL_CHATS = 21
STEP_BY_STEP = ("--no-async-scheduling",)
# vLLM's workers on a CPU bind themselves to cores, one NUMA node each
TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
PARALLEL = {"tp2": "--tensor-parallel-size", "pp2": "--pipeline-parallel-size"}


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON. ``engine`` runs model runner V1.

    Raises:
        AgentSpecError: a server did not start, or V2's environment is missing.
    """
    v2 = bundled_on_runner_v2()
    return _drafts(engine, v2, sizes, log_dir, announce) | _in_parallel(engine, v2, log_dir, announce)


def measure_scenario(
    scenario: Scenario, engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce
) -> dict[str, Any]:
    """Return the figures of the part ``lossless`` for V2 and one scenario. ``engine`` runs V1, the reference.

    Raises:
        AgentSpecError: a server did not start, or V2's environment is missing.
    """
    v2 = bundled_on_runner_v2()
    return lossless.measure(v2, sizes, log_dir, announce, [scenario], reference=engine)


def _drafts(v1: Engine, v2: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    runs: dict[str, sql.Run] = {}
    for name, engine, flags in (
        ("v1", v1, ()),
        ("v2 step by step", v2, STEP_BY_STEP),
        ("v2 asynchronous", v2, ()),
    ):
        announce(f"v2, SQL example: {name}")
        speculator = _ours(name, flags)
        runs[name] = sql.run(engine, speculator, NUM_CLIENTS, sizes.num_questions, log_dir)
    base, ragged, ahead = runs.values()
    return {
        "v2_sql_identical": ragged.texts == ahead.texts == base.texts,
        "v2_accepted_per_step_vs_v1": ragged.counted.accepted_per_step / base.counted.accepted_per_step,
        "v2_async_accepted_per_step_vs_v1": ahead.counted.accepted_per_step / base.counted.accepted_per_step,
        "v2_async_slots_vs_ragged": _slots(ahead) / _slots(ragged),
        "runs": {
            name: {
                "accepted_per_step": run.counted.accepted_per_step,
                "slots_per_accepted": _slots(run),
                "num_slots": run.num_slots,
                "num_accepted": run.counted.num_accepted_tokens,
                "acceptance_rate": run.counted.acceptance_rate,
            }
            for name, run in runs.items()
        },
    }


def _in_parallel(v1: Engine, v2: Engine, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Compare the outputs of two ranks with those of vLLM without speculation on one."""
    chats = load(NUM_PARALLEL_CHATS, SEED)
    announce("v2: reference for two ranks")
    with v1.serving(v1.none, log_dir) as server:
        expected = [answer.choices[0].token_ids for answer in ask_all(server.url, chats, 1)]
    figures: dict[str, Any] = {"v2_async": True}
    for name, flag in PARALLEL.items():
        announce(f"v2, {flag} 2")
        speculator = _ours(name, (flag, "2"), TWO_WORKERS)
        with v2.serving(speculator, log_dir) as server:
            found = [answer.choices[0].token_ids for answer in ask_all(server.url, chats, 4)]
            status = server.control("status")
            num_accepted = server.counters().num_accepted_tokens
        figures[f"v2_{name}_identical"] = found == expected and num_accepted > 0
        figures["v2_async"] &= status["model_runner"] == "V2" and status["async_scheduling"]
    return figures


def _ours(name: str, flags: Sequence[str] = (), environment: dict[str, str] | None = None) -> Speculator:
    return Speculator(
        name,
        num_tokens=OURS_FIXED.num_tokens,
        settings=OURS_FIXED.settings,
        flags=tuple(flags),
        environment=environment or {},
    )


def _slots(run: sql.Run) -> float:
    """Return the verified slots per accepted draft token."""
    return run.num_slots / run.counted.num_accepted_tokens
