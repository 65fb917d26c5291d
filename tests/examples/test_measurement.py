"""The table's arithmetic, compared with figures worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

from examples.agentic_sql import report
from examples.agentic_sql.database import QueryResult
from examples.agentic_sql.measurement import Measurement, Outcome
from examples.agentic_sql.query import Query
from examples.agentic_sql.questions import Question
from examples.agentic_sql.workflow import Answer
from examples.saving.calls import Call
from examples.saving.stage_row import stage_row

_QUERY = Query("shop", "count", "orders")


def _call(
    stage: str, text: str, tokens: int, decode_s: float, steps: int, drafted: int, accepted: int
) -> Call:
    return Call(
        stage,
        text,
        tokens,
        0.1,
        decode_s,
        {
            "num_spec_steps": steps,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "draft_tokens_by_source": {"request": drafted - 1, "stage": 1} if drafted else {},
        },
    )


def _outcome(*calls: Call, correct: bool = True) -> Outcome:
    return Outcome(_QUERY, Answer("SELECT 1", QueryResult(((1,),)), "one"), correct, calls)


def test_a_row_sums_calls_and_weighs_tpot_by_tokens() -> None:
    on = [_call("extract", "a", 11, 0.2, 4, 10, 6), _call("extract", "b", 6, 0.1, 2, 4, 3)]
    off = [_call("extract", "a", 11, 1.0, 10, 0, 0), _call("extract", "b", 6, 0.5, 5, 0, 0)]
    row = stage_row("extract", on, off)
    assert (row.calls, row.output_tokens, row.steps, row.drafted, row.accepted) == (2, 17, 6, 14, 9)
    assert row.accepted_per_step == 15 / 6
    assert row.acceptance_rate == 9 / 14
    assert round(row.tpot_on_s, 9) == 0.02
    assert round(row.tpot_off_s, 9) == 0.1
    assert round(row.speedup, 6) == 5.0
    assert row.share("request") == 12 / 14


def test_a_stage_without_figures_shows_zeros() -> None:
    row = stage_row("all", [Call("all", "x", 1, 0.1, 0.0)], [])
    assert (row.accepted_per_step, row.acceptance_rate, row.speedup, row.share("stage")) == (0, 0, 0, 0)


def test_outputs_are_identical_only_if_every_text_is() -> None:
    one, same = (
        _outcome(_call("extract", "a", 2, 0.1, 1, 0, 0)),
        _outcome(_call("extract", "a", 2, 0.2, 1, 0, 0)),
    )
    other = _outcome(_call("extract", "b", 2, 0.1, 1, 0, 0))
    assert Measurement([one], [same]).outputs_identical is True
    assert Measurement([one], [other]).outputs_identical is False
    assert Measurement([one], []).outputs_identical is None


def test_the_report_is_one_json_line_a_table_and_a_picture(tmp_path: Path) -> None:
    on = _outcome(_call("extract", "a", 11, 0.2, 4, 10, 6))
    off = _outcome(_call("extract", "a", 11, 0.8, 10, 0, 0), correct=False)
    measurement = Measurement([on], [off])
    line = report.json_line(measurement, {"questions": 1})
    assert "\n" not in line
    summary = json.loads(line)["summary"]
    assert summary == {
        "speedup_tpot": 4.0,
        "speedup_tpot_extract": 4.0,
        "accepted_per_step": 2.5,
        "execution_accuracy": 1.0,
        "execution_accuracy_without": 0.0,
        "outputs_identical": True,
    }
    assert report.table(measurement).row_count == 2
    assert "100.0%" in report.verdict(measurement, [Question("How many?", _QUERY)])[0]
    report.plot(measurement, tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
