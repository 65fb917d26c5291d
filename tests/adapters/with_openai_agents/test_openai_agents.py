"""OpenAI Agents: an agent's instructions name its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    AgentBase,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    set_trace_processors,
    trace,
)
from agents.extensions.handoff_filters import remove_all_tools
from agents.run import AgentRunner
from openai._base_client import BaseClient

from agentspec.adapters.openai import stage
from agentspec.adapters.openai_agents import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run
from tests.adapters.support.told import told

NUM_RUNS = 32
PER_RUN = sorted(["triage", "check"] + ["writer"] * 2 + ["team"] * 3 + ["researcher", "review"])
UNTRACED = RunConfig(tracing_disabled=True)


@pytest_asyncio.fixture
async def client(url: str, engine: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    set_trace_processors([])  # send no traces to OpenAI's dashboard
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, client: openai.AsyncOpenAI) -> Any:
    return request.param("scripted", client)


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


def workflow_of(model: Any, client: openai.AsyncOpenAI) -> Agent[Any]:
    """Return a workflow with a hand-off, guardrails that run agents, and an agent as a tool that runs one."""

    def agent(expected: str, name: str, **more: Any) -> Agent[Any]:
        return Agent(name=name, instructions=expected, model=model, **more)

    @function_tool
    async def look_up(topic: str) -> str:
        """Have it looked up."""
        await Runner.run(agent("researcher", "researcher"), "hi")
        asked = [{"role": "system", "content": "team"}, {"role": "user", "content": "hi"}]
        await client.chat.completions.create(model="scripted", messages=asked)
        return "done"

    async def guard(expected: str, name: str) -> GuardrailFunctionOutput:
        await Runner.run(agent(expected, name), "hi")
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    @input_guardrail
    async def check(context: Any, agent: Any, question: Any) -> GuardrailFunctionOutput:
        return await guard("check", "check")

    @output_guardrail
    async def review(context: Any, agent: Any, answer: Any) -> GuardrailFunctionOutput:
        return await guard("review", "review")

    team = agent("team", "team", tools=[look_up])
    write = team.as_tool("team_writes", "Has a team write.")
    writer = agent("writer", "writer", tools=[write], output_guardrails=[review])
    hand_off = handoff(writer, input_filter=remove_all_tools)
    return agent("triage", "triage", handoffs=[hand_off], input_guardrails=[check])


async def follow(agent: Agent[Any], config: RunConfig | None = None) -> None:
    assert [event async for event in Runner.run_streamed(agent, "hi", run_config=config).stream_events()]


@pytest.mark.usefixtures("instrumented")
async def test_runs_side_by_side(model: Any, client: openai.AsyncOpenAI, engine: Any) -> None:
    agent = workflow_of(model, client)
    configs = [None, UNTRACED] * (NUM_RUNS // 2)
    await asyncio.gather(*(Runner.run(agent, "hi", run_config=config) for config in configs))
    assert len(engine.requests) == NUM_RUNS * len(PER_RUN)
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * NUM_RUNS


@pytest.mark.usefixtures("instrumented")
async def test_streams_side_by_side(model: Any, client: openai.AsyncOpenAI, engine: Any) -> None:
    agent = workflow_of(model, client)
    await asyncio.gather(*(follow(agent, config) for config in [None, UNTRACED] * 4))
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * 8


@pytest.mark.usefixtures("instrumented")
def test_threads(url: str, engine: Any) -> None:
    def run_sync(num: int) -> None:
        async def close() -> None:
            await own.close()

        own = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20)
        Runner.run_sync(workflow_of(OpenAIChatCompletionsModel("scripted", own), own), "hi")
        loop = asyncio.get_event_loop()
        loop.run_until_complete(close())
        loop.close()

    set_trace_processors([])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run_sync, range(16)))
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * 16


@pytest.mark.usefixtures("instrumented")
async def test_what_is_outside_a_run_has_no_agent(client: openai.AsyncOpenAI, engine: Any) -> None:
    @function_tool(failure_error_function=None)
    def fail(topic: str) -> str:
        """Fail."""
        raise KeyError("on purpose")

    async def ask() -> None:
        asked: Any = [{"role": "user", "content": "default"}]
        await client.chat.completions.create(model="scripted", messages=asked)

    model = OpenAIChatCompletionsModel("scripted", client)
    writer = Agent(name="writer", instructions="writer", model=model)
    await Runner.run(writer, "hi")
    await ask()
    result = Runner.run_streamed(writer, "hi")
    await ask()
    async for _ in result.stream_events():
        await ask()
    with pytest.raises(UserError):
        await Runner.run(writer.clone(tools=[fail]), "hi")
    await ask()
    assert len(engine.requests) > 6
    assert all(expected == stage for expected, stage in told(engine))


@pytest.mark.usefixtures("instrumented")
async def test_what_is_a_session(client: openai.AsyncOpenAI, engine: Any) -> None:
    agent = Agent(name="writer", model=OpenAIChatCompletionsModel("scripted", client))
    for _ in range(2):
        await Runner.run(agent, "hi", session=SQLiteSession("kept 1"))
        await Runner.run(agent, "hi", run_config=RunConfig(group_id="group"))
        await Runner.run(agent, "hi", run_config={"group_id": "group"})
        await Runner.run(agent, "hi", session=SQLiteSession("s" * 300))
    with trace("both", group_id="traced"):
        await Runner.run(agent, "hi")
        await Runner.run(agent, "hi")
    with trace("both"):
        await Runner.run(agent, "hi")
        await Runner.run(agent, "hi")
    with trace("both", disabled=True):
        await Runner.run(agent, "hi")
        await Runner.run(agent, "hi")
    found = [request.tags.session for request in engine.requests]
    assert found[:8] == ["kept%201", "group", "group", None] * 2
    assert found[8:10] == ["traced"] * 2
    assert found[10] == found[11] is not None
    assert len({*found[8:]}) == 4


async def test_names(client: openai.AsyncOpenAI, engine: Any) -> None:
    model = OpenAIChatCompletionsModel("scripted", client)

    async def ask(name: str, tools: Any = ()) -> None:
        await Runner.run(Agent(name=name, model=model, tools=list(tools)), "hi")

    @function_tool
    async def ask_itself(topic: str) -> str:
        """Again."""
        await ask("planner")
        return "done"

    undo = instrument(workflow="flow")
    await ask("planner", [ask_itself])
    await ask("planner-3f2504e0-4f89-11d3-9a0c-0305e82c3301")
    await ask("3f2504e0-4f89-11d3-9a0c-0305e82c3301")
    await ask("é" * 60)
    with stage("named", session="run-1"):
        await ask("planner", [ask_itself])
    undo()
    assert [request.tags.stage.name for request in engine.requests] == [
        *["flow/planner"] * 4,
        *["flow"] * 2,
        *["flow/named"] * 3,
    ]
    assert {request.tags.session for request in engine.requests[-3:]} == {"run-1"}


@pytest.mark.usefixtures("instrumented")
async def test_a_block_in_a_tool_is_a_stage(client: openai.AsyncOpenAI, engine: Any) -> None:
    model = OpenAIChatCompletionsModel("scripted", client)

    @function_tool
    async def look_up(topic: str) -> str:
        """Have it looked up."""
        with stage("look/up"):
            await Runner.run(Agent(name="researcher", model=model), "hi")
        return "done"

    await Runner.run(Agent(name="writer", model=model, tools=[look_up]), "hi")
    assert [request.tags.stage.name for request in engine.requests] == ["writer", "look/up", "writer"]
    assert len(sessions(engine)) == 1


@pytest.mark.usefixtures("instrumented")
async def test_a_run_goes_on_after_an_approval(client: openai.AsyncOpenAI, engine: Any) -> None:
    model = OpenAIChatCompletionsModel("scripted", client)

    @function_tool(needs_approval=True)
    async def look_up(topic: str) -> str:
        """Have it looked up."""
        await Runner.run(Agent(name="researcher", model=model), "hi")
        return "done"

    writer = Agent(name="writer", model=model, tools=[look_up])
    first = Agent(name="first", model=model, handoffs=[handoff(writer, input_filter=remove_all_tools)])
    state = (await Runner.run(first, "hi")).to_state()
    state.approve(state.get_interruptions()[0])
    await Runner.run(first, state)
    names = [request.tags.stage.name for request in engine.requests]
    assert names == ["first", "writer", "researcher", "writer"]


async def test_it_can_be_undone(client: openai.AsyncOpenAI, engine: Any) -> None:
    owners = (AgentRunner, AgentBase, BaseClient)
    before = [dict(vars(owner)) for owner in owners]
    agent = Agent(name="writer", model=OpenAIChatCompletionsModel("scripted", client))
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    await Runner.run(agent, "hi")
    last()
    last()
    await Runner.run(agent, "hi")
    assert [request.tags.stage.name for request in engine.requests] == ["last/writer", "default"]
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = dict(vars(AgentRunner))
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert dict(vars(AgentRunner)) == before


def test_the_block_to_copy_runs() -> None:
    (block,) = blocks("OpenAI Agents SDK")
    _, found = run(block)
    assert found == ["support/triage", "support/billing"]
