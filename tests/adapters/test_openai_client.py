from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai._base_client import BaseClient

from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.openai import agentspec_headers, instrument, stage
from agentspec.errors import ConfigError, StageError
from tests.adapters.support.copied import blocks, run

Stages = Callable[[], list[str]]
ASKED: Any = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(url: str, engine: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()


def ask(client: openai.OpenAI, **options: Any) -> None:
    client.chat.completions.create(**ASKED, **options)


def test_it_can_be_undone_in_any_order(client: openai.OpenAI, stages: Stages) -> None:
    original = vars(BaseClient)["_build_request"]
    first, last = instrument(workflow="first"), instrument(workflow="last")
    with stage("a"):
        ask(client)
        first()
        first()
        ask(client)
        last()
        ask(client)
    assert stages() == ["last/a", "last/a", "default"]
    assert vars(BaseClient)["_build_request"] is original


def test_one_that_was_wrapped_by_others_says_nothing_more(
    client: openai.OpenAI, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = instrument(workflow="flow")
    ours = BaseClient._build_request
    with monkeypatch.context() as patch:
        patch.setattr(BaseClient, "_build_request", lambda *args, **kwargs: ours(*args, **kwargs))
        undo()
        ask(client)
    BaseClient._build_request = ours.__wrapped__  # type: ignore[attr-defined]
    assert stages() == ["default"]


@pytest.mark.usefixtures("instrumented")
def test_a_block_has_a_stage_and_a_session(client: openai.OpenAI, stages: Stages, engine: Any) -> None:
    ask(client)
    with stage("a", session="run-1"):
        ask(client)
        with stage("b/c"):
            ask(client, stream=True)
        client.responses.create(model="scripted", input="hi")
        client.completions.create(model="scripted", prompt="hi")
    ask(client)
    assert stages() == ["flow", "flow/a", "flow/b/c", "flow/a", "flow/a", "flow"]
    assert [request.tags.session for request in engine.requests] == [None, *["run-1"] * 4, None]


@pytest.mark.usefixtures("instrumented")
def test_headers_by_hand_stay(client: openai.OpenAI, stages: Stages) -> None:
    with stage("a"):
        ask(client, extra_headers={"X-AgentSpec-Stage": "mine"})
        ask(client.with_options(default_headers={"x-agentspec-stage": "mine"}))
    assert stages() == ["mine", "mine"]


@pytest.mark.usefixtures("instrumented")
def test_what_a_framework_tells_is_a_hint(client: openai.OpenAI, stages: Stages) -> None:
    for role in (("a", "b"), ("bad ", *"abcdefg"), ("é" * 60,), ()):
        with calling(Caller(role=role)):
            ask(client)
    assert stages() == ["flow/a/b", "flow/a/b/c/d/e/f/g", "flow", "flow"]


@pytest.mark.usefixtures("instrumented")
async def test_tasks_and_threads_have_stages_of_their_own(url: str, stages: Stages, engine: Any) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=20) as client:

        async def one(name: str) -> None:
            with stage(name):
                await asyncio.sleep(0)
                stream = await client.chat.completions.create(**ASKED, stream=True)
                assert [chunk async for chunk in stream]

        await asyncio.gather(*(one(f"task {i}") for i in range(32)))
    assert sorted(stages()) == sorted(f"flow/task {i}" for i in range(32))


@pytest.mark.usefixtures("instrumented")
def test_threads(client: openai.OpenAI, stages: Stages) -> None:
    def one(name: str) -> None:
        with stage(name):
            ask(client)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, (f"thread {i}" for i in range(32))))
    assert sorted(stages()) == sorted(f"flow/thread {i}" for i in range(32))


@pytest.mark.parametrize("path", ["", "a//b", "a ", "/".join("abcdefghi")])
def test_bad_names_change_nothing(path: str) -> None:
    original = vars(BaseClient)["_build_request"]
    with pytest.raises(StageError), stage(path):
        pass
    with pytest.raises(StageError):
        instrument(workflow=path)
    with pytest.raises(ConfigError), stage("a", session="s" * 256):
        pass
    assert vars(BaseClient)["_build_request"] is original


def test_a_stage_that_is_too_long_with_its_workflow(client: openai.OpenAI, stages: Stages) -> None:
    undo = instrument(workflow="/".join("abcdefgh"))
    with stage("i"), pytest.raises(StageError):
        ask(client)
    undo()
    assert stages() == []


def test_the_headers_are_to_be_had_here() -> None:
    assert agentspec_headers("a") == {"x-agentspec-stage": "a"}


@pytest.mark.parametrize(
    ("block", "expected"),
    list(zip(blocks("OpenAI's client"), (["agentic_sql/extract"], ["agentic_sql/extract"]), strict=True)),
)
def test_the_blocks_to_copy_run(block: str, expected: list[str]) -> None:
    _, found = run(block)
    assert found == expected


def test_the_block_without_tags_runs() -> None:
    (block,) = blocks("What is sent, and to whom")
    assert run(block)[1] == ["agentic_sql/extract", "default", "default", "default"]


def test_the_block_of_all_frameworks_runs() -> None:
    (block,) = blocks("Which adapter do I take?")
    assert run(block)[1] == ["agentic_sql/extract"]


def test_the_block_that_shows_it_runs() -> None:
    (block,) = blocks("How to see that it works")
    assert run(block)[1] == ["agentic_sql/extract"]
