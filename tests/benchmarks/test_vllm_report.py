"""The report on the parts: summary keys, bars, growth, medians; and the file that collects the parts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentspec.reporting.report import Outputs
from benchmarks.vllm import lossless, run, soak, sql
from benchmarks.vllm.counters import Counters
from benchmarks.vllm.options import V2_SCENARIOS
from benchmarks.vllm.scenarios import SCENARIOS
from benchmarks.vllm.sizes import QUICK
from benchmarks.vllm.speculators import Engine

KEYS = {
    "outputs_identical",
    "accepted_per_step_gain_vs_suffix",
    "throughput_vs_none_c1",
    "throughput_vs_none_c8",
    *(f"wall_vs_suffix_c{number}" for number in (1, 4, 8)),
    *(f"no_repeat_throughput_c{number}" for number in (1, 8, 32)),
    "v2_outputs_identical",
    "v2_sql_identical",
    "v2_async",
    "v2_tp2_identical",
    "v2_pp2_identical",
    "v2_accepted_per_step_vs_v1",
    "v2_async_accepted_per_step_vs_v1",
    "v2_async_slots_vs_ragged",
    "soak_rss_growth",
}
ENGINE = Engine("model", ())
SOAK = {"soak_rss_growth": 0.01, "outputs_identical": True}


def test_the_summary_of_nothing() -> None:
    assert run.summary({}) == dict.fromkeys(KEYS)


def test_model_runner_v2_has_a_part_for_each_scenario() -> None:
    assert [f"v2_{re.sub(r'[^a-z0-9]', '_', one.name)}" for one in SCENARIOS] == list(V2_SCENARIOS)
    same, other = {"outputs_identical": True}, {"outputs_identical": False}
    parts = dict.fromkeys(V2_SCENARIOS, same)
    assert run.summary(parts)["v2_outputs_identical"] is True
    assert run.summary({**parts, "v2_n_2": other})["v2_outputs_identical"] is False
    del parts["v2_plain"]
    assert run.summary(parts)["v2_outputs_identical"] is None


@pytest.mark.parametrize(
    ("part", "figure", "good", "bad"),
    [
        ("sql", "accepted_per_step_gain_vs_suffix", 1.15, 1.14),
        ("sql", "throughput_vs_none_c1", 2.0, 1.9),
        ("sql", "throughput_vs_none_c8", 1.5, 1.4),
        ("sql", "wall_vs_suffix_c4", 0.8, 0.81),
        ("no_repeat", "no_repeat_throughput_c32", 0.98, 0.97),
        ("v2_plain", "num_different", 0, 1),
        ("v2", "v2_async_slots_vs_ragged", 1.35, 1.36),
        ("soak", "soak_rss_growth", 0.0299, 0.03),
        ("lossless", "num_preemptions", 1, 0),
    ],
)
def test_bars(part: str, figure: str, good: float, bad: float) -> None:
    bar = next(bar for bar in run.BARS if (bar.part, bar.figure) == (part, figure))
    assert bar.passes({part: {figure: good}}) is True
    assert bar.passes({part: {figure: bad}}) is False
    assert bar.passes({}) is None


def test_memory_grows_over_the_judged_part_alone() -> None:
    start = [(float(at), 100 * at, 0) for at in range(10)]
    flat = [(float(at), 1_000, 0) for at in range(10, 31)]
    assert soak.growth([*start, *flat]) == pytest.approx(0)
    rising = [(float(at), 1_000 + 5 * (at - 10), 0) for at in range(10, 31)]
    assert soak.growth([*start, *rising]) == pytest.approx(0.1)


def sql_run(
    speculator: str, num_clients: int, wall_s: float, accepted: int, said: str = "SELECT 1"
) -> sql.Run:
    counted = Counters(num_requests=10, num_output_tokens=110, num_accepted_tokens=accepted)
    return sql.Run(speculator, num_clients, wall_s, wall_s, 1.0, counted, 0, [[("sql_1", said)]])


def sql_runs(said: str = "SELECT 1") -> list[sql.Run]:
    """Return two rounds, the second on a machine that is twice as slow."""
    return [
        sql_run(name, clients, wall_s * slowness, accepted, said if name == "agentspec" else "SELECT 1")
        for slowness in (1, 2)
        for name, wall_s, accepted in (("none", 4.0, 0), ("suffix", 2.0, 50), ("agentspec", 1.0, 75))
        for clients in sql.NUM_CLIENTS
    ]


def test_sql_compares_within_a_round() -> None:
    figures = sql.figures(sql_runs())
    assert figures["outputs_identical"] is True
    assert figures["throughput_vs_none_c1"] == 4
    assert figures["wall_vs_suffix_c1"] == figures["wall_vs_suffix_c8"] == 0.5
    assert figures["accepted_per_step_gain_vs_suffix"] == pytest.approx((100 / 25) / (100 / 50))
    assert figures["runs"]["suffix, 4 at a time"]["rounds_wall_s"] == [2, 4]


def test_sql_notices_another_answer() -> None:
    assert sql.figures(sql_runs("SELECT 2"))["outputs_identical"] is False


def comparison(speculator: str, num_different: int, scenario: str = "plain") -> lossless.Comparison:
    counted = Counters(num_preemptions=3)
    return lossless.Comparison(scenario, speculator, 1, 203, 999, num_different, 0, 0.0, counted)


def test_lossless_counts_both_sides_apart() -> None:
    preempting = next(one.name for one in SCENARIOS if one.preempts)
    figures = lossless.figures(
        [comparison("none", 2), comparison("agentspec", 0), comparison("agentspec", 0, preempting)]
    )
    assert figures["outputs_identical"] is True
    assert (figures["num_different"], figures["num_different_without"]) == (0, 2)
    assert figures["num_preemptions"] == 3
    assert lossless.figures([comparison("agentspec", 1)])["outputs_identical"] is False


def test_parts_are_added_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(name: str, *_: Any) -> dict[str, Any]:
        return {"no_repeat": {"no_repeat_throughput_c1": 0.987654}, "soak": SOAK}[name]

    monkeypatch.setattr(run, "measure", measure)
    path = tmp_path / "results" / "vllm.json"
    assert run.run(ENGINE, ["no_repeat"], QUICK, Outputs(json=path)) == 0
    assert run.run(ENGINE, ["soak"], QUICK, Outputs(json=path)) == 0
    written = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == written
    assert written["summary"] == dict.fromkeys(KEYS) | {
        "no_repeat_throughput_c1": 0.9877,
        **SOAK,
    }
    assert set(written["parts"]) == {"no_repeat", "soak"}
    assert written["parts"]["no_repeat"]["provenance"]["model"] == "model"
