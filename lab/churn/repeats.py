"""Two runs per scope, to separate the code's time from the machine's.

Every run of a scope makes the same calls in the same order. A thread's CPU time includes the machine's
influence: interrupts, and shared caches and cores. So each call counts with the least time of any run. The
number of runs does not depend on their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentspec.forest import Tokens
from benchmarks.harness.process import in_fresh_process
from lab.churn import measure as one_run
from lab.churn.measure import Figures
from lab.churn.meter import LIMIT_MS, SLOW_MS
from lab.churn.scopes import Scope
from lab.churn.sizes import Sizes

NUM_RUNS = 2
SAME_IN_EVERY_RUN = (
    "memory_max_ratio",
    "memory_min_ratio",
    "oldest_first",
    "markers_refused",
    "tokens",
    "tokens_held",
)


def measure(scope: Scope, datasets: list[list[Tokens]], sizes: Sizes) -> Figures:
    """Return all figures of one scope, from all runs."""
    return combined([in_fresh_process(one_run.measure, scope, datasets, sizes) for _ in range(NUM_RUNS)])


def combined(runs: Sequence[Figures]) -> Figures:
    """Return the first run's figures, with the most memory of any run and each call's least time."""
    first = runs[0]
    for run in runs:
        assert all(run[name] == first[name] for name in SAME_IN_EVERY_RUN), "the runs did different things"
    least = _least([run["slow_calls"] for run in runs])
    singles = [run["slowest_call_ms"] for run in runs]
    return {
        **{name: value for name, value in first.items() if name != "slow_calls"},
        "rss_max_ratio": max(run["rss_max_ratio"] for run in runs),
        "slowest_call_ms": min(max(least, default=SLOW_MS), *singles),
        "slowest_call_single_ms": max(singles),
        "calls_over_limit": sum(ms >= LIMIT_MS for ms in least),
        "num_runs": len(runs),
    }


def _least(runs: Sequence[Mapping[int, float]]) -> list[float]:
    """Return the least time of each call that was slow in every run."""
    return [min(run[number] for run in runs) for number in runs[0] if all(number in run for run in runs)]
