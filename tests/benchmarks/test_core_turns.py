"""Timing of several sides in turn."""

from __future__ import annotations

from benchmarks.core.turns import Turns, spread


def test_everybody_takes_every_turn_and_the_order_changes() -> None:
    turns, order = Turns(), []
    for _ in range(20):
        results = turns.take(
            {"ours": lambda: order.append("ours"), "peer": lambda: order.append("peer") or 7}
        )
        assert results == {"ours": None, "peer": 7}
    assert {tuple(order[i : i + 2]) for i in range(0, 40, 2)} == {("ours", "peer"), ("peer", "ours")}
    assert {name: len(seconds) for name, seconds in turns.seconds.items()} == {"ours": 20, "peer": 20}
    assert list(turns.totals_s()) == ["ours", "peer"]
    assert all(seconds >= 0 for seconds in turns.totals_s().values())


def test_milliseconds() -> None:
    turns = Turns()
    turns.seconds = {"ours": [0.001, 0.003, 0.002]}
    assert {key: round(ms, 6) for key, ms in turns.spreads_ms()["ours"].items()} == {
        "median": 2,
        "p99": 2.98,
        "max": 3,
    }


def test_the_spread_of_one_value() -> None:
    assert spread([4.0]) == {"median": 4.0, "p99": 4.0, "max": 4.0}
