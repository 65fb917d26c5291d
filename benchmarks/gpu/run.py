"""Runs all variants, each in a process of its own, and keeps the figures of each in a file of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import Announce
from benchmarks.gpu import shapes
from benchmarks.gpu.calls import Calls, digest
from benchmarks.gpu.job import Job
from benchmarks.gpu.variants import Variant

POLL_S = 0.5
STOP_LIMIT_S = 20.0
LOG_TAIL_LINES = 12
ON_GPU_FLAGS = ("--dtype", "bfloat16", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.85")
ON_CPU_FLAGS = ("--dtype", "float32", "--max-num-seqs", "4", "--enforce-eager")
ON_CPU_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1"}
WITHOUT_FLASHINFER_VARIABLES = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}  # otherwise vLLM 0.32 imports it unasked
TRIAL_LAYERS = 2
TRIAL_FLAGS = ("--kv-cache-memory-bytes", str(3 << 30))  # not a share of what the others leave
# the compile cache holds if all variants have the same configuration
SAME_FOR_ALL = (
    "--load-format",
    "dummy",
    "--skip-tokenizer-init",
    "--cudagraph-metrics",
    "--additional-config",
    "{}",
)
VARIABLES = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        calls: the file of prepared calls.
        folder: for the figures and logs; variants that it has figures of are not run again.
        limit_s: seconds for all variants; one that is running then is stopped.
        load_limit_s: seconds after which a load begins no more calls.
        is_trial: all variants at once, with few layers, on a GPU: do they work? Their times say nothing.
    """

    calls: Path
    folder: Path
    variants: Sequence[Variant]
    on_cpu: bool
    limit_s: float
    load_limit_s: float
    is_trial: bool = False


def try_all(plan: Plan, announce: Announce) -> dict[str, Any]:
    """Run all variants side by side; return the figures of each."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + plan.limit_s
    with ThreadPoolExecutor(len(plan.variants)) as threads:
        running = {
            variant.name: threads.submit(_run, plan, variant, _identity(plan, variant), until_s, announce)
            for variant in plan.variants
        }
    return {name: one.result() for name, one in running.items()}


def run_all(plan: Plan, announce: Announce) -> dict[str, Any]:
    """Run the variants in order while there is time; return the figures of each, and those from before.

    A variant is not begun if the last one took longer than the time that is left.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    until_s, longest_s = time.monotonic() + plan.limit_s, 0.0
    found: dict[str, Any] = {}
    for variant in plan.variants:
        path, run_of = plan.folder / f"{variant.name}.json", _identity(plan, variant)
        before = _read(path)
        if before.get("is_done") and before.get("run_of") == run_of:
            announce(f"{variant.name}: measured before")
            found[variant.name] = before
            continue
        left_s = until_s - time.monotonic()
        if left_s <= longest_s:
            announce(f"{variant.name}: left out, {left_s:.0f} s are left")
            continue
        begin_s = time.monotonic()
        found[variant.name] = _run(plan, variant, run_of, until_s, announce)
        longest_s = max(longest_s, time.monotonic() - begin_s)
    return found


def _run(plan: Plan, variant: Variant, run_of: object, until_s: float, announce: Announce) -> dict[str, Any]:
    announce(f"{variant.name}: starting vLLM")
    path, log = (plan.folder / f"{variant.name}.{suffix}" for suffix in ("json", "log"))
    process = _start(plan, variant, path, log)
    error = _follow(process, variant, path, until_s, announce)
    figures = {
        **_read(path),
        "is_done": error is None,
        "error": error and f"{error}: {_tail(log)}",
        "run_of": run_of,
        "provenance": provenance(),
    }
    path.write_text(json.dumps(figures))
    if error:
        announce(f"{variant.name}: {error}, see {log}")
    return figures


def _start(plan: Plan, variant: Variant, path: Path, log: Path) -> subprocess.Popen[bytes]:
    path.unlink(missing_ok=True)
    calls = Calls.load(plan.calls)
    shape = shapes.tiny(calls) if plan.on_cpu else shapes.llama_8b(calls)
    if plan.is_trial:
        shape = {**shape, "num_hidden_layers": TRIAL_LAYERS}
    model = shapes.write(plan.folder / "model" / variant.name, shape)
    flags = (*_flags(plan), "--max-model-len", str(calls.longest + 1), *variant.flags)
    job = path.with_suffix(".job")
    Job(
        str(model),
        str(plan.calls),
        str(path),
        flags,
        variant.has_plugin,
        plan.load_limit_s,
        variant.settings,
    ).write(job)
    variables = {**VARIABLES, **_variables(plan), **variant.environment}
    if plan.is_trial:  # they compile at the same time
        variables["VLLM_CACHE_ROOT"] = str(plan.folder / "cache" / variant.name)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.served", str(job)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,  # the engine's processes are in its group
        )


def _variables(plan: Plan) -> dict[str, str]:
    """Return what vLLM needs on this machine, for all variants alike."""
    if plan.on_cpu:
        return ON_CPU_VARIABLES
    return {} if find_spec("flashinfer") else WITHOUT_FLASHINFER_VARIABLES


def _follow(
    process: subprocess.Popen[bytes], variant: Variant, path: Path, until_s: float, announce: Announce
) -> str | None:
    """Announce each load until the process ends; return what went wrong."""
    seen: set[str] = set()
    try:
        while process.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)
            _announce_loads(variant, _read(path), seen, announce)
        if process.poll() is None:
            return "stopped: the time is up"
        _announce_loads(variant, _read(path), seen, announce)
        return f"ended with status {process.returncode}" if process.returncode else None
    finally:
        _stop(process)


def _announce_loads(variant: Variant, found: Mapping[str, Any], seen: set[str], announce: Announce) -> None:
    for name, load in found.get("loads", {}).items():
        if name not in seen:
            seen.add(name)
            announce(
                f"{variant.name}, {name}: {load['tokens_per_s']:.0f} tokens/s, {load['num_different']} differ"
            )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and the engine's, which may outlive it."""
    for one in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, one)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _flags(plan: Plan) -> tuple[str, ...]:
    if plan.on_cpu:
        return (*SAME_FOR_ALL, *ON_CPU_FLAGS)
    return (*SAME_FOR_ALL, *ON_GPU_FLAGS, *(TRIAL_FLAGS if plan.is_trial else ()))


def _identity(plan: Plan, variant: Variant) -> dict[str, Any]:
    """Return what must be the same for figures from before to count."""
    return {
        "calls": digest(plan.calls),
        "flags": [*_flags(plan), *variant.flags],
        "environment": dict(variant.environment),
        "settings": dict(variant.settings),
        "load_limit_s": plan.load_limit_s,
        "is_trial": plan.is_trial,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
