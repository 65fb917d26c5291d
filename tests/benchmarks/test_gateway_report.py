"""The report on measurements: percentiles, overlaps, growth, keys of the summary, bars."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.command import main
from benchmarks.gateway import latency, percentiles, run, soak, throughput
from benchmarks.gateway.client import Exchange
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.sides import DIRECT, LITELLM, OURS, litellm_config

KEYS = {
    "added_ms_p50",
    "added_ms_p99",
    "litellm_added_ms_p50",
    "req_per_s_core",
    "litellm_req_per_s_core",
    "soak_rss_growth",
}
LOAD = latency.Load(100, 64, 1.0, 0.1, 6_144)


def test_the_summary_of_nothing() -> None:
    assert run.summary({}) == dict.fromkeys(KEYS)


@pytest.mark.parametrize(
    ("part", "figure", "good", "bad"),
    [
        ("latency", "added_ms_p50", 1.49, 1.5),
        ("latency", "added_ms_p99", 4.9, 5.0),
        ("latency", "added_vs_litellm_p99", 0.2, 0.21),
        ("throughput", "req_per_s_core", 400, 399),
        ("throughput", "req_per_s_core_vs_litellm", 8, 7.9),
        ("soak", "soak_rss_growth", 0.02, 0.021),
        ("soak", "num_errors", 0, 1),
    ],
)
def test_bars(part: str, figure: str, good: float, bad: float) -> None:
    bar = next(bar for bar in run.BARS if (bar.part, bar.figure) == (part, figure))
    assert bar.passes({part: {figure: good}}) is True
    assert bar.passes({part: {figure: bad}}) is False
    assert bar.passes({}) is None


def test_what_is_added_is_told_round_by_round() -> None:
    quiet, busy = np.arange(101.0), np.arange(101.0) + 1_000
    side = [quiet + 3, busy + 5, quiet + 4]
    assert percentiles.added(side, [quiet, busy, quiet], 50) == 4
    assert percentiles.added(side, [quiet, busy, quiet], 99) == 4
    assert percentiles.curve(side, [quiet, busy, quiet])[0] == (1, 4)
    assert percentiles.described([quiet]) == {"ms_p50": 50, "ms_p90": 90, "ms_p99": 99}


def served(answer_ms: float, first_ms: float, num_errors: int = 0) -> latency.Served:
    """Return the same latency for every request of a kind."""
    kinds = {latency.ANSWER: answer_ms, latency.FIRST_BYTE: first_ms}
    return latency.Served({kind: np.full(10, ms) for kind, ms in kinds.items()}, num_errors)


def test_latency_tells_the_worse_kind() -> None:
    rounds = {DIRECT: [served(1, 1)], OURS: [served(2, 3, 1)], LITELLM: [served(11, 9)]}
    figures = latency.figures(rounds, dict.fromkeys(rounds, LOAD))
    assert (figures["answer_added_ms_p50"], figures["first_byte_added_ms_p50"]) == (1, 2)
    assert (figures["added_ms_p50"], figures["litellm_added_ms_p50"]) == (2, 10)
    assert figures["added_vs_litellm_p50"] == 2 / 8
    assert figures["litellm_rate_per_s"] == 100
    assert figures["num_errors"] == 1
    assert set(figures["curves"]) == {OURS, LITELLM}


def test_latency_without_litellm() -> None:
    rounds = {DIRECT: [served(1, 1)], OURS: [served(2, 3)]}
    figures = latency.figures(rounds, dict.fromkeys(rounds, LOAD))
    assert "litellm_added_ms_p50" not in figures
    assert run.summary({"latency": figures}) == dict.fromkeys(KEYS) | {
        "added_ms_p50": 2,
        "added_ms_p99": 2,
    }


def test_part_of_a_load() -> None:
    part = LOAD.part(1 / 8)
    assert (part.rate_per_s, part.num_beside, part.seconds) == (12.5, 8, 1.0)
    assert latency.turned(["a", "b", "c"], 4) == ["b", "c", "a"]


def test_throughput_is_per_second_of_processor_time() -> None:
    def counted(num_done: int, cpu_s: float | None) -> throughput.Counted:
        return throughput.Counted(num_done, num_done, 1, wall_s=2.0, cpu_s=cpu_s)

    requests = {
        DIRECT: [counted(9_000, None)],
        OURS: [counted(1_000, 2.0), counted(900, 1.5)],
        LITELLM: [counted(100, 2.0), counted(60, 1.0)],
    }
    figures = throughput.figures(requests, requests)
    assert (figures["req_per_s_core"], figures["litellm_req_per_s_core"]) == (550, 55)
    assert figures["req_per_s_core_vs_litellm"] == 10
    assert figures["cpu_us_per_chunk"] == pytest.approx((2_000 + 1_667) / 2, abs=1)
    assert figures["sides"][DIRECT] == {
        "wall_req_per_s": 4_500,
        "num_errors": 2,
        "others_cores": [0, 0],
    }
    assert figures["num_errors"] == 4


def test_soak_judges_what_comes_after_the_warm_up() -> None:
    samples = [soak.Sample(float(at), 100 + 100 * min(at, 10) + (at == 60), 20) for at in range(61)]
    traffic = soak.Traffic(Counter(stream=7, error=2), Counter({"stream: status 500": 1}), 0)
    figures = soak.figures(traffic, samples, warm_up_s=10)
    assert figures["soak_rss_growth"] == 0
    assert soak.figures(traffic, samples, warm_up_s=0)["soak_rss_growth"] > 1
    assert (figures["num_requests"], figures["num_errors"], figures["open_files_growth"]) == (9, 1, 0)


@pytest.mark.parametrize(
    ("kind", "plan", "exchange", "is_expected"),
    [
        ("stream", Plan(), Exchange(0, status=200, is_complete=True), True),
        ("stream", Plan(), Exchange(0, status=200), False),
        ("stream", Plan(), Exchange(0, status=200, is_complete=True, is_changed=True), False),
        ("error", Plan(status=429), Exchange(0, status=429, is_complete=True), True),
        ("error", Plan(status=429), Exchange(0, status=500, is_complete=True), False),
        ("leaves in the middle", Plan(), Exchange(0, status=200, left_ns=5), True),
        ("leaves in the middle", Plan(), Exchange(0, status=200, is_complete=True), False),
        ("breaks off", Plan(breaks_after=3), Exchange(0, status=200), True),
        (
            "breaks off",
            Plan(breaks_after=3),
            Exchange(0, status=200, is_complete=True, is_changed=True, rest=b'data: {"error":{}}\n\n'),
            True,
        ),
        ("breaks off", Plan(breaks_after=3), Exchange(0, status=200, is_changed=True, rest=b"data"), False),
        ("breaks off", Plan(breaks_after=3), Exchange(0, status=200, is_complete=True), False),
    ],
)
def test_what_a_soak_expects(kind: str, plan: Plan, exchange: Exchange, is_expected: bool) -> None:
    assert soak.KINDS[kind].is_expected(exchange, plan) is is_expected


def test_the_soaks_kinds_are_all_of_its_traffic() -> None:
    assert sum(kind.share for kind in soak.KINDS.values()) == pytest.approx(1)


def test_litellm_knows_every_model_and_writes_nothing() -> None:
    config: Any = litellm_config("http://127.0.0.1:1", latency.models(LOAD))
    assert [one["model_name"] for one in config["model_list"]] == latency.models(LOAD)
    assert "database_url" not in str(config)


@pytest.mark.parametrize("text", ["latency, soak", "speed", ""])
def test_unknown_parts_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gateway", "--only", text])
    assert "parts are latency, throughput, soak" in capsys.readouterr().err


def test_a_litellm_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--litellm", str(tmp_path / "litellm")]) != 0
    assert "make bench-gateway" in capsys.readouterr().err
