"""The whole churn benchmark on a tiny trace, its report, and its command line."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentspec.reporting.report import COLUMNS, Outputs, run
from lab.churn import options, report
from lab.churn.run import make_report
from lab.churn.scopes import SCOPES
from lab.churn.sizes import Sizes
from lab.command import main

SIZES = Sizes(tokens=120_000, budget_mb=1, dataset_tokens=5_000)
KEYS = {
    *(f"rss_max_ratio_{scope}" for scope in SCOPES),
    *(f"slowest_call_ms_{scope}" for scope in SCOPES),
    "memory_max_ratio",
    "memory_min_ratio",
    "oldest_first",
    "markers_refused",
}


def figures(**changed: Any) -> dict[str, Any]:
    series = {"tokens": [1_000, 2_000], "memory_mib": [0.5, 0.9], "rss_mib": [0.6, 1.0]}
    usual = {"rss_max_ratio": 1.05, "memory_max_ratio": 0.98, "memory_min_ratio": 0.8}
    usual |= {"slowest_call_ms": 2.5, "oldest_first": True, "markers_refused": 0}
    return {**usual, "series": series, "budget_mb": 128, **changed}


@pytest.mark.slow
def test_one_scope(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "new" / "churn.json", tmp_path / "other" / "churn.png"
    outputs = Outputs(json=path, plot=picture)
    assert run(lambda announce: make_report(traces, ["stage"], SIZES, announce), outputs) == 0
    printed = capsys.readouterr().out.splitlines()
    assert path.read_text() == printed[-1] + "\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    told = json.loads(printed[-1])
    assert set(told["summary"]) == KEYS
    assert told["summary"]["rss_max_ratio_tenant"] is None
    assert 0.5 < told["summary"]["memory_max_ratio"] <= 1
    assert told["summary"]["oldest_first"] is True
    assert told["summary"]["markers_refused"] == 0
    assert told["provenance"]["sizes"] == asdict(SIZES)
    [(scope, measured)] = told["figures"].items()
    assert scope == "stage"
    assert measured["tokens"] >= SIZES.tokens > measured["tokens_held"] > 0
    assert len({len(values) for values in measured["series"].values()}) == 1
    assert measured["calls"]["withdraw"]["count"] > 0
    assert measured["num_runs"] == 2
    assert "least of 2 runs" in " ".join(printed)


@pytest.mark.slow
def test_nothing_is_forgotten_where_there_is_room(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = Sizes(tokens=10_000, budget_mb=64, dataset_tokens=5_000)
    assert run(lambda announce: make_report(traces, ["tenant"], sizes, announce), Outputs()) == 0
    printed = capsys.readouterr()
    assert "warning: tenant: too few tokens" in " ".join(printed.err.split())
    told = json.loads(printed.out.splitlines()[-1])["summary"]
    assert (told["oldest_first"], told["memory_min_ratio"], told["markers_refused"]) == (None, None, 0)
    assert printed.out.count("FAIL") == 2


def test_the_summary_is_of_the_worst_scope() -> None:
    worse = figures(
        memory_max_ratio=1.01,
        memory_min_ratio=0.2,
        markers_refused=3,
        oldest_first=False,
        slowest_call_ms=7.0,
    )
    told = report.summary({"stage": figures(), "forest": worse})
    assert set(told) == KEYS
    assert (told["memory_max_ratio"], told["memory_min_ratio"]) == (1.01, 0.2)
    assert (told["oldest_first"], told["markers_refused"]) == (False, 3)
    assert told["slowest_call_ms_stage"] == 2.5
    assert told["slowest_call_ms_forest"] == 7.0
    assert told["slowest_call_ms_tenant"] is None


def test_bars_are_met_by_every_scope_or_not_at_all() -> None:
    good, bad = {"stage": figures(), "tenant": figures()}, {"stage": figures(), "tenant": figures()}
    bad["tenant"] |= {"rss_max_ratio": 1.11, "slowest_call_ms": 5.1, "oldest_first": False}
    bad["tenant"] |= {"memory_min_ratio": 0.74}
    judged = [row for row in report.ROWS if row.bar]
    assert [row.passes(good) for row in judged] == [True] * 6
    assert {row.figure: row.passes(bad) for row in judged} == {
        "rss_max_ratio": False,
        "memory_max_ratio": True,
        "memory_min_ratio": False,
        "slowest_call_ms": False,
        "oldest_first": False,
        "markers_refused": True,
    }
    assert report.table(good).row_count == len(report.ROWS)


def test_what_could_not_be_told_is_no_pass() -> None:
    untold = {"stage": figures(), "forest": figures(oldest_first=None, memory_min_ratio=None)}
    failed = {row.figure for row in report.ROWS if row.passes(untold) is False}
    assert failed == {"oldest_first", "memory_min_ratio"}
    told = report.summary(untold)
    assert (told["oldest_first"], told["memory_min_ratio"]) == (None, None)


def test_nothing_measured_is_no_verdict(tmp_path: Path) -> None:
    assert {row.passes({}) for row in report.ROWS} == {None}
    assert set(report.summary({}).values()) == {None}
    report.plot({"stage": figures(), "forest": figures()}, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


def test_outputs_that_hurt_have_amounts_of_their_own() -> None:
    sizes = Sizes(tokens=5, budget_mb=4, hard_tokens=3, hard_budget_mb=2)
    amounts = {name: (sizes.of(scope).tokens, sizes.of(scope).budget_mb) for name, scope in SCOPES.items()}
    usual = dict.fromkeys(("stage", "tenant", "forest"), (5, 4))
    assert amounts == {**usual, "router": (3, 2), "popular": (3, 2)}


def test_the_table_is_not_cut_off() -> None:
    longest = dict.fromkeys((row.figure for row in report.ROWS), 999_999)
    shown = io.StringIO()
    Console(width=COLUMNS, file=shown).print(report.table(dict.fromkeys(SCOPES, longest)))
    assert "…" not in shown.getvalue()


def test_the_command_line_knows_the_scopes() -> None:
    assert tuple(SCOPES) == options.SCOPES


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["churn", "--help"])
    assert "--budget-mb" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", [*(f"--tokens={n}" for n in ("0", "many", "nan", "inf")), "--budget-mb=0", "--scope=x"]
)
def test_wrong_options_are_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["churn", "--traces", "traces", option])
    assert repr(option.partition("=")[2]) in capsys.readouterr().err


@pytest.mark.slow
def test_options_reach_the_benchmark(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["churn", "--traces", str(traces), "--quick", "--scope", "stage"]
    assert main([*command, "--tokens", "2e4", "--budget-mb", "1"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    sizes = {"tokens": 20_000, "budget_mb": 1, "dataset_tokens": 60_000}
    assert told["provenance"]["sizes"] == {**sizes, "hard_tokens": 20_000, "hard_budget_mb": 1}
    assert told["provenance"]["arguments"] == {"traces": traces.name, "scopes": ["stage"]}


def test_a_folder_without_traces_is_an_error_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["churn", "--traces", str(tmp_path)]) == 1
    assert "error: no traces" in capsys.readouterr().err
