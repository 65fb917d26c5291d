"""The pipeline against a real gateway: scripted answers for its branches, the bundled model for the whole."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from agentspec.stages import StageKey
from examples.agentic_sql.calls import Caller
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.workflow import Answer, answer
from tests.examples.support.stage_engine import GOOD, QUESTION, SCRIPT, StageEngine
from tests.gateway.support.live import serving_engine


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Database]:
    return open_all(tmp_path_factory.mktemp("databases"))


@pytest.fixture
def ask(databases: dict[str, Database]) -> Callable[..., tuple[Answer, StageEngine]]:
    def run(**changes: list[str]) -> tuple[Answer, StageEngine]:
        engine = StageEngine(texts={k: list(v) for k, v in {**SCRIPT, **changes}.items()})

        async def pipeline(url: str) -> Answer:
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                return await answer(QUESTION, Caller(client, "scripted", "run-1"), databases)

        with serving_engine(engine) as url:
            return asyncio.run(pipeline(url)), engine

    return run


def test_each_call_has_its_stage_and_all_share_a_session(
    ask: Callable[..., tuple[Answer, StageEngine]],
) -> None:
    given, engine = ask()
    assert given == Answer(GOOD, given.result, "There are 600 orders.")
    assert given.result.rows == ((600,),)
    assert sorted(r.tags.stage.name for r in engine.requests) == sorted(
        f"agentic_sql/{stage}" for stage in SCRIPT
    )
    assert {r.tags.session for r in engine.requests} == {"run-1"}
    assert engine.requests[0].tags.stage == StageKey("default", ("agentic_sql", "classify"))


def test_a_refused_query_gets_a_correction_turn_with_the_error(
    ask: Callable[..., tuple[Answer, StageEngine]],
) -> None:
    _, engine = ask(sql_2=["SELECT colour FROM orders", GOOD])
    turns = [r for r in engine.requests if r.tags.stage.path[-1] == "sql_2"]
    assert len(turns) == 2
    messages = turns[1].prompt
    assert not isinstance(messages, str)
    assert [m["role"] for m in messages if isinstance(m, dict)] == ["system", "user", "assistant", "user"]
    assert "SQLite says: no such column: colour" in str(messages[-1])
    shown = str(next(r for r in engine.requests if r.tags.stage.path[-1] == "combine").prompt)
    assert shown.count("Rows: 600") == 3


def test_text_that_is_no_json_fails_at_its_stage(ask: Callable[..., tuple[Answer, StageEngine]]) -> None:
    assert ask(classify=["I think it is the shop"])[0].failure == "classify"
    assert ask(classify=['{"database": "library"}'])[0].failure == "classify"
    given, _ = ask(combine=["[1, 2]"])
    assert (given.failure, given.result.rows) == ("combine", ())


def test_the_graph_says_what_it_needs() -> None:
    code = """
import sys
sys.modules["langchain_core"] = None  # as if it were not installed
from examples.agentic_sql.__main__ import main
sys.exit(main(["--graph", "--model", "scripted", "--questions", "1"]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 2, run.stderr
    assert "agentspec-serving[langchain]" in run.stdout


def test_the_whole_program_with_the_bundled_model(tmp_path: Path, free_port: int) -> None:
    """Run the equivalent of ``make run ONCE=1`` with fewer questions."""
    url = f"http://127.0.0.1:{free_port}/v1"
    command = [sys.executable, "-m", "examples.agentic_sql", "--serve", "--once", "--questions", "6"]
    options = [
        "--base-url",
        url,
        "--json",
        str(tmp_path / "out" / "line.json"),
        "--plot",
        str(tmp_path / "out" / "table.png"),
    ]
    run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads((tmp_path / "out" / "line.json").read_text())
    assert run.stdout.splitlines()[-1] == json.dumps(figures)
    assert figures["summary"]["outputs_identical"] is True
    assert figures["summary"]["accepted_per_step"] > 1.5
    assert figures["summary"]["execution_accuracy"] >= 0.5
    assert set(figures["stages"]) >= {*SCRIPT, "all"}
    assert (tmp_path / "out" / "table.png").stat().st_size > 10_000


def test_without_a_server_the_program_says_what_to_do(free_port: int) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.agentic_sql",
        "--base-url",
        f"http://127.0.0.1:{free_port}/v1",
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 2
    assert "agentspec serve" in run.stdout
