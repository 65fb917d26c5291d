"""The small patterns: votes and choices worked by hand, and each pattern with the bundled model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from examples import debate, self_consistency, self_refinement
from examples.agentic_sql.database import QueryResult
from examples.agentic_sql.pattern import Attempt, Pattern, Saving
from examples.saving.calls import Call
from examples.self_consistency import vote
from examples.self_refinement import chosen_sql
from tests.support.serving import serving

ONE, TWO = QueryResult(((1,),)), QueryResult(((2,),))
WRONG = QueryResult(error="no such column: colour")


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([TWO, ONE, ONE], ONE),
        ([TWO, ONE], TWO),
        ([WRONG, WRONG, ONE], ONE),
        ([WRONG, WRONG], WRONG),
    ],
    ids=["majority", "tie", "errors do not vote", "nobody has one"],
)
def test_the_vote(results: list[QueryResult], expected: QueryResult) -> None:
    assert vote(results) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"choice": 1, "sql": "SELECT 1"}', "SELECT 1"), ("[1]", ""), ("I say", ""), ('{"sql": 3}', "")],
)
def test_the_judges_choice(text: str, expected: str) -> None:
    assert chosen_sql(text) == expected


def attempt(text: str, elapsed_s: float, steps: int) -> Attempt:
    speculation = {"num_spec_steps": steps, "num_accepted_draft_tokens": 10 - steps}
    return Attempt(True, (True, False), elapsed_s, (Call("sql", text, 10, 0.1, 0.5, speculation),))


def test_the_saving() -> None:
    saved = Saving(self_consistency.PATTERN, [attempt("a", 1.0, 4)], [attempt("a", 3.0, 10)])
    summary = saved.summary()
    assert (summary["steps"], summary["steps_without"], summary["speedup"]) == (4, 9, 3.0)
    assert (summary["right"], summary["tries_right"], summary["tries"]) == (1, 1, 2)
    assert saved.lines()[1] == "decode steps 9 -> 4 (2.2 times fewer), time 3.0 s -> 1.0 s (3.0x)"
    other = Saving(self_consistency.PATTERN, saved.on, [attempt("b", 3.0, 10)])
    assert (saved.outputs_identical, other.outputs_identical) == (True, False)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Serve the bundled model with a fixed price, which does not depend on step times."""
    with serving("--log-level", "warning", "--price", "0.25") as (_, url):
        yield url


Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("pattern", "main", "options"),
    [
        (self_consistency.PATTERN, self_consistency.main, ("--questions", "2", "--samples", "4")),
        (self_refinement.PATTERN, self_refinement.main, ("--questions", "2")),
        (debate.PATTERN, debate.main, ("--questions", "1")),
    ],
    ids=["self_consistency", "self_refinement", "debate"],
)
def test_a_pattern_saves_steps_and_changes_no_output(
    pattern: Pattern,
    main: Main,
    options: tuple[str, ...],
    served: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "out" / "line.json"
    assert main(["--url", served, "--json", str(file), *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == file.read_text().strip()
    figures = json.loads(file.read_text())
    summary = figures["summary"]
    assert summary["outputs_identical"] is True
    assert summary["steps"] < 0.7 * summary["steps_without"]
    assert summary["right"] == summary["right_without"] >= 1
    assert set(figures["stages"]) == {*pattern.stages, "all"}
    assert "api_key" not in figures["provenance"]["arguments"]


def test_without_a_server_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert debate.main(["--url", "http://127.0.0.1:9/v1"]) == 2
    assert "no server answers" in capsys.readouterr().out
