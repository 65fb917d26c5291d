"""The untagged LangGraph graph sends the same requests as the tagged pipeline, with the same stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from agentspec.generation import GenerationRequest
from examples.agentic_sql import graph
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.pipelines import Pipeline, Tagged, untagged
from examples.agentic_sql.workflow import Answer
from tests.examples.support.stage_engine import GOOD, QUESTION, SCRIPT, StageEngine
from tests.gateway.support.live import serving_engine

Ask = Callable[..., tuple[Answer, StageEngine]]
OURS = ("agentspec", "X-AgentSpec", "stage", "metadata", "tags")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Database]:
    return open_all(tmp_path_factory.mktemp("databases"))


@pytest.fixture
def ask(databases: dict[str, Database]) -> Ask:
    def run(
        *, is_graph: bool = True, num_runs: int = 1, speculate: bool = True, **changes: list[str]
    ) -> tuple[Answer, StageEngine]:
        script = {**SCRIPT, **changes}
        engine = StageEngine(texts={stage: list(texts) * num_runs for stage, texts in script.items()})

        async def pipeline(url: str) -> list[Answer]:
            async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                made = (
                    untagged(url, "none", "scripted", databases)
                    if is_graph
                    else nullcontext(Tagged(client, "scripted", databases))
                )
                with made as one:
                    return await asyncio.gather(*(answered(one, number) for number in range(num_runs)))

        async def answered(one: Pipeline, number: int) -> Answer:
            given, calls = await one.answer(QUESTION, f"run-{number}", speculate=speculate)
            assert len(calls) == sum(map(len, script.values())) or given.failure
            return given

        with serving_engine(engine) as url:
            return asyncio.run(pipeline(f"{url}/v1"))[0], engine

    return run


def essence(engine: StageEngine) -> list[GenerationRequest]:
    """Return the requests in a fixed order, without the fields that vary between runs."""
    requests = [replace(one, request_id="", tags=replace(one.tags, session=None)) for one in engine.requests]
    return sorted(requests, key=lambda one: (one.tags.stage.name, len(one.prompt)))


@pytest.mark.parametrize(
    "changes",
    [{}, {"sql_2": ["SELECT colour FROM orders", GOOD]}, {"classify": ["no JSON"]}, {"combine": ["[1]"]}],
    ids=["straight", "correction", "no database", "no answer"],
)
def test_the_graph_makes_the_same_requests_at_the_same_stages(
    ask: Ask, changes: dict[str, list[str]]
) -> None:
    tagged_answer, tagged = ask(is_graph=False, **changes)
    graph_answer, untagged_ = ask(**changes)
    assert graph_answer == tagged_answer
    assert essence(untagged_) == essence(tagged)


def test_without_speculation_the_requests_say_so(ask: Ask) -> None:
    _, engine = ask(speculate=False)
    assert {(one.tags.max_draft, one.tags.learn) for one in engine.requests} == {(0, False)}


def test_each_run_is_a_session_of_its_own_and_all_have_the_same_stages(ask: Ask) -> None:
    num_runs = 32
    _, engine = ask(num_runs=num_runs)
    by_session: dict[str | None, list[str]] = {}
    for request in engine.requests:
        by_session.setdefault(request.tags.session, []).append(request.tags.stage.name)
    assert None not in by_session
    assert len(by_session) == num_runs
    expected = sorted(f"agentic_sql/{stage}" for stage in SCRIPT)
    assert all(sorted(stages) == expected for stages in by_session.values())


def test_the_graph_knows_nothing_of_us() -> None:
    code = Path(graph.__file__).read_text(encoding="utf-8").partition('"""\n')[2]
    assert not [word for word in OURS if word in code]
