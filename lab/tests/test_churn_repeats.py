"""Merging several runs of the same calls."""

from __future__ import annotations

from typing import Any

import pytest

from lab.churn.meter import SLOW_MS
from lab.churn.repeats import combined


def run(slow_calls: dict[int, float], **changed: Any) -> dict[str, Any]:
    usual = {"memory_max_ratio": 0.97, "memory_min_ratio": 0.8, "oldest_first": True, "markers_refused": 0}
    usual |= {"tokens": 20, "tokens_held": 5}
    slowest = max(slow_calls.values(), default=2.5)
    return {**usual, "rss_max_ratio": 1.0, "slow_calls": slow_calls, "slowest_call_ms": slowest, **changed}


def test_a_single_run_stands_as_it_is() -> None:
    told = combined([run({7: 4.5, 9: 12.0})])
    assert (told["slowest_call_ms"], told["slowest_call_single_ms"]) == (12.0, 12.0)
    assert (told["calls_over_limit"], told["num_runs"]) == (1, 1)
    assert "slow_calls" not in told
    assert combined([run({})])["slowest_call_ms"] == 2.5


def test_of_each_call_the_least_counts() -> None:
    told = combined([run({1: 100.0, 2: 4.5, 3: 6.0}), run({2: 7.0, 3: 5.5, 4: 80.0})])
    assert (told["slowest_call_ms"], told["slowest_call_single_ms"]) == (5.5, 100.0)
    assert (told["calls_over_limit"], told["num_runs"]) == (1, 2)


def test_calls_that_were_slow_only_once_are_not_slow() -> None:
    told = combined([run({1: 100.0}), run({2: 80.0})])
    assert (told["slowest_call_ms"], told["calls_over_limit"]) == (SLOW_MS, 0)
    assert combined([run({1: 100.0}), run({})])["slowest_call_ms"] == 2.5


def test_the_most_memory_counts() -> None:
    assert combined([run({}), run({}, rss_max_ratio=1.2)])["rss_max_ratio"] == 1.2


def test_runs_that_did_different_things_are_no_repeats() -> None:
    with pytest.raises(AssertionError, match="different things"):
        combined([run({}), run({}, tokens_held=6)])
