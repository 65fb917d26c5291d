"""Bars, summary, table, JSON and plot, from made-up figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import json_line
from benchmarks.core import report
from benchmarks.core.bars import ROWS, Kind, Row, summary

KEYS = {
    "append_speedup",
    "removal_speedup",
    "memory_ratio_mixed",
    "memory_ratio_repeated",
    "step_speedup_b64",
    "step_speedup_b256",
    "drafted_ratio_b64",
    "drafted_ratio_b256",
    "agreement_b64",
    "agreement_b256",
    "threads2_speedup_b256",
    "threads2_drafted_ratio_b256",
    "learned_speedup_b64",
    "learned_speedup_b256",
    "learned_drafted_ratio_b64",
    "learned_drafted_ratio_b256",
    "ingest_in_step_ms_32k",
    "request_memory_ratio",
}


def ms(median: float) -> dict[str, float]:
    return {"median": median, "p99": 2 * median, "max": 3 * median}


FIGURES: dict[str, dict[str, Any]] = {
    "append_ns_per_token": {"ours": 100.0, "peer": 650.0},
    "bytes_per_token_mixed": {"ours": 30.0, "peer": 300.0},
    "bytes_per_token_mixed_empty": {"ours": 24.0, "peer": 300.0},
    "step_ms_b64": {"ours": ms(1), "ours_1_thread": ms(0.9), "ours_2_threads": ms(0.6), "peer": ms(9)},
    "step_ms_b256": {
        "ours": ms(4),
        "ours_every_source": ms(8),
        "ours_learned": ms(5),
        "peer": ms(40),
        "ours_1_thread": ms(3),
        "ours_2_threads": ms(1.5),
    },
    "ingest_in_step_ms_32k": {"ours": ms(0.4), "peer": ms(50)},
}


def test_the_summary_has_the_keys_it_must_have() -> None:
    assert set(summary({})) == KEYS
    assert set(summary({}).values()) == {None}


def test_results() -> None:
    results = {key: value for key, value in summary(FIGURES).items() if value is not None}
    assert results == {
        "append_speedup": 6.5,
        "memory_ratio_mixed": 0.1,
        "step_speedup_b64": 9.0,
        "step_speedup_b256": 10.0,
        "learned_speedup_b256": 8.0,
        "threads2_speedup_b256": 2.0,
        "ingest_in_step_ms_32k": 0.4,
    }


def test_without_a_peer_only_our_own_results_are_left() -> None:
    alone = {
        name: {side: value for side, value in sides.items() if side != "peer"}
        for name, sides in FIGURES.items()
    }
    results = {key: value for key, value in summary(alone).items() if value is not None}
    assert results == {"threads2_speedup_b256": 2.0, "ingest_in_step_ms_32k": 0.4}
    assert report.table(alone, None).row_count > 0


def test_bars() -> None:
    verdicts = {(row.label.strip(), row.figure): row.passes(FIGURES) for row in ROWS if row.bar}
    assert verdicts["append, ns/token", "append_ns_per_token"] is True
    assert verdicts["left when all is removed", "bytes_per_token_mixed_empty"] is False
    assert verdicts["decode step, B = 64, ms", "step_ms_b64"] is False
    assert verdicts["decode step, B = 256, ms", "step_ms_b256"] is True
    assert verdicts["removal, ns/token", "removal_ns_per_token"] is None


@pytest.mark.parametrize(
    ("kind", "bar", "passes"),
    [
        (Kind.SPEEDUP, 2, True),
        (Kind.SPEEDUP, 2.1, False),
        (Kind.SHARE, 0.5, True),
        (Kind.SHARE, 0.4, False),
        (Kind.ALIKE, 0.5, True),
        (Kind.ALIKE, 0.4, False),
        (Kind.VALUE, 10, True),
        (Kind.VALUE, 9, False),
        (Kind.VALUE, None, None),
    ],
)
def test_a_bar_is_met_exactly(kind: Kind, bar: float | None, passes: bool | None) -> None:
    assert Row("", "time", kind, bar).passes({"time": {"ours": 10.0, "peer": 20.0}}) is passes


@pytest.mark.parametrize(
    ("drafted", "agreed", "passes"),
    [
        (10.0, 9.5, {True}),
        (0.0, 0.0, {False}),  # drafts nothing
        (10.0, 2.0, {True, False}),  # drafts something else
        (20.0, 10.0, {True, False}),  # drafts without end
    ],
)
def test_drafts_are_those_of_the_peer(drafted: float, agreed: float, passes: set[bool]) -> None:
    figures = {
        "drafted_per_request_b64": {"ours": drafted, "peer": 10.0},
        "agreed_per_request_b64": {"ours": agreed},
    }
    verdicts = {row.passes(figures) for row in ROWS if row.key in ("drafted_ratio_b64", "agreement_b64")}
    assert verdicts == passes
    assert report.table(figures, "a peer").row_count == 3


def test_the_json_is_one_line_with_four_digits() -> None:
    figures = {"append_ns_per_token": {"ours": 100.0, "peer": 333.33333}}
    line = json_line({"summary": summary(figures), "figures": figures}, {"peer": "p 1"})
    assert "\n" not in line
    told = json.loads(line)
    assert told["figures"] == {"append_ns_per_token": {"ours": 100.0, "peer": 333.3}}
    assert told["summary"]["append_speedup"] == 3.333
    assert told["summary"]["removal_speedup"] is None
    assert told["provenance"] == {"peer": "p 1"}


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    report.plot(FIGURES, "a peer", tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_provenance_is_json_and_names_no_folder() -> None:
    told = provenance()
    text = json.dumps(told)
    assert str(Path(__file__).parents[2]) not in text
    assert set(told) == {"versions", "commit", "dirty", "machine", "date"}
