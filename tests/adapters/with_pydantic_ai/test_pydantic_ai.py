"""PydanticAI: an agent's instructions name its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai._base_client import BaseClient
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, TextOutput
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentspec.adapters.openai import stage
from agentspec.adapters.pydantic_ai import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run
from tests.adapters.support.told import told

ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
NUM_RUNS = 32
PER_RUN = sorted(["writer"] * 2 + ["team"] * 3 + ["researcher"] * 2)


class Joke(BaseModel):
    setup: str


@pytest_asyncio.fixture
async def client(url: str, engine: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, client: openai.AsyncOpenAI) -> Any:
    return request.param("scripted", provider=OpenAIProvider(openai_client=client))


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument()
    yield
    undo()


def sessions(engine: Any) -> dict[str | None, list[str]]:
    """Return the stages of each session."""
    found: dict[str | None, list[str]] = {}
    for request in engine.requests:
        found.setdefault(request.tags.session, []).append(request.tags.stage.name)
    return {session: sorted(stages) for session, stages in found.items()}


def workflow_of(model: Any, client: openai.AsyncOpenAI) -> Agent[Any, str]:
    """Return an agent with a tool that runs a second agent.

    The tool of the second agent runs a third one in two ways, and calls a model without an agent.
    """
    researcher = Agent(model, name="researcher", instructions="researcher")
    team = Agent(model, name="team", instructions="team")
    writer = Agent(model, name="writer", instructions="writer")

    @team.tool_plain
    async def look_up(topic: str) -> str:
        """Have it looked up."""
        await researcher.run("hi")
        async with researcher.run_stream("hi") as answer:
            assert [text async for text in answer.stream_text()]
        asked = [{"role": "system", "content": "team"}, {"role": "user", "content": "hi"}]
        await client.chat.completions.create(model="scripted", messages=asked)
        return "done"

    @writer.tool_plain
    async def delegate(topic: str) -> str:
        """Have a team do it."""
        return (await team.run("hi")).output

    return writer


async def follow(agent: Agent[Any, str]) -> None:
    async with agent.run_stream("hi") as answer:
        assert [text async for text in answer.stream_text()]


async def follow_events(agent: Agent[Any, str]) -> None:
    async with agent.run_stream_events("hi") as events:
        assert [event async for event in events]


async def step(agent: Agent[Any, str]) -> None:
    async with agent.iter("hi") as steps:
        assert [node async for node in steps]


@pytest.mark.usefixtures("instrumented")
async def test_runs_side_by_side(model: Any, client: openai.AsyncOpenAI, engine: Any) -> None:
    agent = workflow_of(model, client)
    ways = (agent.run("hi"), follow(agent), follow_events(agent), step(agent))
    await asyncio.gather(*ways, *(agent.run("hi") for _ in range(NUM_RUNS - len(ways))))
    assert len(engine.requests) == NUM_RUNS * len(PER_RUN)
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * NUM_RUNS


@pytest.mark.usefixtures("instrumented")
async def test_streams_side_by_side(model: Any, client: openai.AsyncOpenAI, engine: Any) -> None:
    agent = workflow_of(model, client)
    await asyncio.gather(*(way(agent) for way in [follow, follow_events, step] * 4))
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * 12


@pytest.mark.usefixtures("instrumented")
def test_threads(url: str, engine: Any) -> None:
    """Run synchronously in threads of the test, with synchronous tools in PydanticAI's threads."""

    def run_sync(num: int) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20)
        model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client))
        writer = Agent(model, name="writer", instructions="writer")

        @writer.tool_plain
        def ask(topic: str) -> str:
            """Ask without any agent."""
            asked: Any = [{"role": "system", "content": "writer"}, {"role": "user", "content": "hi"}]
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
                client.chat.completions.create(model="scripted", messages=asked)
            return "done"

        writer.run_sync("hi")
        loop.run_until_complete(client.close())
        loop.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run_sync, range(NUM_RUNS)))
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [["writer"] * 3] * NUM_RUNS


@pytest.mark.usefixtures("instrumented")
async def test_outputs(model: Any, engine: Any) -> None:
    editor = Agent(model, name="editor", instructions="editor")

    async def edited(setup: str) -> str:
        """Have it edited."""
        return (await editor.run(setup)).output

    writer = Agent(model, name="writer", instructions="writer", output_type=TextOutput(edited))
    joker = Agent(model, name="joker", instructions="joker", output_type=NativeOutput(Joke))
    await writer.run("hi")
    assert (await joker.run("hi")).output == Joke(setup="Why?")
    assert all(expected == stage for expected, stage in told(engine))
    assert [request.tags.stage.name for request in engine.requests] == ["writer", "editor", "joker"]


@pytest.mark.usefixtures("instrumented")
async def test_what_is_outside_a_run_has_no_agent(model: Any, engine: Any) -> None:
    writer = Agent(model, name="writer")

    @writer.tool_plain
    async def fail() -> str:
        """Fail."""
        raise KeyError("on purpose")

    async def ask() -> None:
        await model_request(model, [ModelRequest.user_text_prompt("hi")])

    with pytest.raises(KeyError):
        await writer.run("hi")
    await ask()
    with pytest.raises(KeyError):
        await follow(writer)
    await ask()
    async with Agent(model, name="reader").run_stream_events("hi") as events:
        async for _ in events:
            break
    await ask()
    assert [request.tags.stage.name for request in engine.requests] == [
        *["writer", "default"] * 2,
        *["reader", "default"],
    ]


@pytest.mark.usefixtures("instrumented")
async def test_a_conversation_is_a_session(model: Any, engine: Any) -> None:
    writer = Agent(model, name="writer")
    first = await writer.run("hi")
    await writer.run("hi", message_history=first.all_messages())
    await writer.run("hi", conversation_id="kept 1")
    await writer.run("hi", conversation_id="s" * 300)
    assert [request.tags.session for request in engine.requests] == [
        *[first.conversation_id] * 2,
        *["kept%201", None],
    ]


async def test_names(model: Any, engine: Any) -> None:
    undo = instrument(workflow="flow")
    inferred = Agent(model)
    itself = Agent(model, name="planner")

    @itself.tool_plain
    async def ask(topic: str) -> str:
        """Again."""
        return (await Agent(model, name="planner").run("hi")).output

    await inferred.run("hi")
    await itself.run("hi")
    await Agent(model).run("hi")
    for name in (
        "planner-3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "é" * 60,
    ):
        await Agent(model, name=name).run("hi")
    with stage("named", session="run-1"):
        await itself.run("hi")
    undo()
    assert [request.tags.stage.name for request in engine.requests] == [
        "flow/inferred",
        *["flow/planner"] * 3,
        "flow",
        "flow/planner",
        *["flow"] * 2,
        *["flow/named"] * 3,
    ]
    assert {request.tags.session for request in engine.requests[-3:]} == {"run-1"}


@pytest.mark.usefixtures("instrumented")
async def test_a_block_in_a_tool_is_a_stage(model: Any, engine: Any) -> None:
    writer = Agent(model, name="writer")

    @writer.tool_plain
    async def look_up(topic: str) -> str:
        """Have it looked up."""
        with stage("look/up"):
            return (await Agent(model, name="researcher").run("hi")).output

    await writer.run("hi")
    assert [request.tags.stage.name for request in engine.requests] == ["writer", "look/up", "writer"]
    assert len(sessions(engine)) == 1


@pytest.mark.usefixtures("instrumented")
async def test_other_capabilities_stay(model: Any, engine: Any) -> None:
    told: list[str] = []

    class Told(AbstractCapability[Any]):
        async def before_run(self, ctx: Any) -> None:
            told.append("before")

    await Agent(model, name="writer").run("hi", capabilities=[Told()])
    await Agent(model, name="writer", capabilities=[Told()]).run("hi")
    assert told == ["before"] * 2


async def test_it_can_be_undone(model: Any, engine: Any) -> None:
    before = [dict(vars(owner)) for owner in (CombinedCapability, BaseClient)]
    writer = Agent(model, name="writer")
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    await writer.run("hi")
    last()
    last()
    await writer.run("hi")
    assert [request.tags.stage.name for request in engine.requests] == ["last/writer", "default"]
    assert [dict(vars(owner)) for owner in (CombinedCapability, BaseClient)] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = dict(vars(CombinedCapability))
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert dict(vars(CombinedCapability)) == before


def test_the_block_to_copy_runs() -> None:
    (block,) = blocks("PydanticAI")
    names, found = run(block)
    asyncio.get_event_loop().run_until_complete(names["provider"].client.close())  # ends with its program
    assert found == ["support/triage", "support/billing", "support/triage"]
