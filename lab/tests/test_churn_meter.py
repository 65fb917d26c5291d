"""How calls are counted. Their durations are not tested here."""

from __future__ import annotations

import time

import pytest

from lab.churn.meter import SLOW_MS, WITHDRAWAL, Meter, Times


def times(*ms: float) -> Times:
    found = Times()
    for one in ms:
        found.add(one / 1e3)
    return found


def test_quantiles_are_exact_to_a_hundredth_of_a_millisecond() -> None:
    many = times(*[0.123] * 998, 4.567, 80.0)
    assert many.quantile_ms(0.5) == pytest.approx(0.13)
    assert many.quantile_ms(0.999) == pytest.approx(4.57)
    assert many.quantile_ms(1) == many.max_ms == pytest.approx(80)
    assert len(many) == 1000


def test_no_quantile_is_above_the_maximum() -> None:
    assert times(0.001).quantile_ms(0.5) == pytest.approx(0.001)
    assert Times().quantile_ms(0.5) == 0


def test_the_limit_is_a_bin_of_its_own() -> None:
    assert times(4.99, 5.001, 6.0).num_over(5) == 2


def test_kinds_can_be_put_together() -> None:
    both = Times().include([times(1.0, 2.0), times(7.0)])
    assert (len(both), both.num_over(5)) == (3, 1)
    assert both.max_ms == pytest.approx(7)
    assert both.total_s == pytest.approx(0.01)


def test_every_call_is_counted_and_memory_is_looked_at_after_it() -> None:
    held: list[int] = []
    meter = Meter(lambda: sum(held), 1000)
    meter.call("learn", held.append, 100)
    assert meter.call("finish", held.pop) == 100
    meter.call("learn", held.extend, [30, 40])
    assert (meter.max_bytes, meter.min_bytes) == (100, None)
    figures = meter.figures()
    assert {kind: one["count"] for kind, one in figures.items()} == {"learn": 2, "finish": 1}
    assert set(figures["learn"]["cpu_ms"]) == {"p50", "p99.9", "max", "num_over_limit"}
    assert meter.total_s() >= 0


def test_the_least_memory_counts_once_the_budget_was_full() -> None:
    sizes = iter([10, 79, 80, 95, 0, 40, 99])
    meter = Meter(lambda: next(sizes), 100)
    least = []
    for _ in range(7):
        meter.call("learn", int)
        least.append(meter.min_bytes)
    assert least == [None, None, 80, 80, 0, 0, 0]
    assert meter.max_bytes == 99


def work() -> None:
    """Take the time of a slow call."""
    end_s = time.thread_time() + SLOW_MS / 1e3
    while time.thread_time() < end_s:
        pass


def test_slow_calls_are_remembered_by_number_but_for_withdrawals() -> None:
    meter = Meter(lambda: 0, 1000)
    for kind in ("learn", WITHDRAWAL, "step"):
        meter.call(kind, work)
    assert set(meter.slow) == {0, 2}
    assert min(*meter.slow.values(), meter.cpu[WITHDRAWAL].max_ms) >= SLOW_MS


def test_a_call_that_raises_raises() -> None:
    with pytest.raises(IndexError):
        Meter(lambda: 0, 1000).call("finish", [].pop)
