from __future__ import annotations

import pytest

from agentspec.gateway.dashboard.snapshot import BUCKET_S, NUM_BUCKETS, SlidingWindow
from agentspec.stats import StageStats


def test_rates_are_what_counters_gained() -> None:
    trail, stats = SlidingWindow(), StageStats(num_requests=100, num_steps=10, num_accepted_tokens=10)
    trail.update(5.0, stats)
    assert (trail.now.requests_per_s, trail.now.accepted_per_step, trail.series) == (0.0, None, [])
    for second in range(1, 3):
        stats.num_requests += 3
        stats.num_output_tokens += 30
        stats.num_steps += 10
        stats.num_accepted_tokens += 20
        trail.update(5.0 + second, stats)  # the same object, as with live counters
    assert (trail.now.requests_per_s, trail.now.tokens_per_s) == (3.0, 30.0)
    assert (trail.now.accepted_per_step, trail.series) == (3.0, [3.0])


def test_now_is_the_last_seconds_and_recent_all_that_is_kept() -> None:
    trail, stats = SlidingWindow(), StageStats()
    for bucket in range(NUM_BUCKETS + 11):
        stats.num_steps += 1
        stats.num_accepted_tokens += 0 if bucket < NUM_BUCKETS else 4
        trail.update(BUCKET_S * bucket, stats)
    assert trail.now.accepted_per_step == 5.0
    assert trail.recent.num_steps == len(trail.series) == NUM_BUCKETS
    assert trail.recent.seconds == pytest.approx(BUCKET_S * NUM_BUCKETS)
    assert trail.recent.num_accepted_tokens == 4 * 11


def test_an_engine_that_began_anew_gains_nothing_by_it() -> None:
    trail = SlidingWindow()
    trail.update(0.0, StageStats(num_requests=9, num_steps=9))
    trail.update(1.0, StageStats(num_requests=1, num_steps=1))
    trail.update(2.0, StageStats(num_requests=3, num_steps=2))
    assert (trail.recent.num_requests, trail.recent.num_steps) == (2, 1)


def test_a_silent_piece_of_time_has_no_value() -> None:
    trail = SlidingWindow()
    for second in range(5):
        trail.update(float(second), StageStats(num_steps=second // 3))
    assert trail.series == [None, 1.0]
