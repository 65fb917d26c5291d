"""The GPU benchmark's variants with a tiny model on vLLM's build for CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.gpu.run import Plan, run_all
from benchmarks.gpu.variants import chosen
from tests.support.recorded_calls import repetitive_calls


def forced(folder: Path, *names: str) -> dict[str, Any]:
    """Return the figures of the named variants."""
    calls = folder / "calls.xz"
    repetitive_calls().save(calls)
    plan = Plan(calls, folder / "out", chosen(names, on_cpu=True), on_cpu=True, limit_s=600, load_limit_s=300)
    return run_all(plan, print)
