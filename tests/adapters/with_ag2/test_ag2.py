"""AG2: each agent's prompt is its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from ag2 import Agent, TaskConfig, tool
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import EV_TEXT, Hub
from ag2.tools.subagents.background import background_agent_tool
from pydantic import BaseModel

from agentspec.adapters.ag2 import instrument
from agentspec.adapters.openai import stage
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run
from tests.adapters.support.told import are_right, sessions, told

NUM_RUNS = 32
instrumented = pytest.mark.usefixtures("instrumented")


def agent_of(config: Any, name: str, **more: Any) -> Agent:
    return Agent(name, prompt=f"flow/{name}", config=config, **more)


async def ask_once(connected: Any, name: str) -> None:
    async with connected() as config:
        await agent_of(config, name).ask("Work.")


@instrumented
@pytest.mark.parametrize("is_streaming", [False, True])
async def test_runs_side_by_side(config: Any, engine: Any, is_streaming: bool) -> None:
    """Run two agents that are asked at the same time."""
    agents = [agent_of(replace(config, streaming=is_streaming), name) for name in ("planner", "writer")]

    async def converse(agent: Agent) -> None:
        reply = await agent.ask("Work.")
        await reply.ask("More.")

    await asyncio.gather(*(converse(agents[num % 2]) for num in range(NUM_RUNS)))
    assert len(engine.requests) == NUM_RUNS * 2
    assert are_right(engine, "planner", "writer")
    assert list(sessions(engine).values()) == [2] * NUM_RUNS


@instrumented
async def test_runs_that_are_watched(config: Any, engine: Any) -> None:
    """Open two runs together. One drives its turn in a task of its own; the other waits for its result."""
    planner, writer = agent_of(config, "planner"), agent_of(config, "writer")
    async with planner.run("Plan.") as first, writer.run("Write.") as second:
        first.start()
        await second.result()
        await first.result()
    assert are_right(engine, "planner", "writer")
    assert len(sessions(engine)) == 2


@instrumented
async def test_tools_that_run_agents(config: Any, engine: Any) -> None:
    @tool
    async def consult(question: str) -> str:
        """Ask an expert."""
        await agent_of(config, "expert").ask(question)
        return "done"

    researcher = agent_of(config, "researcher")
    tools = [
        researcher.as_tool(description="looks things up"),
        background_agent_tool(researcher, description="looks things up later"),
        consult,
    ]
    for one in tools:
        await agent_of(config, "chief", tools=[one]).ask("Work.")
    assert are_right(engine, "chief", "researcher", "expert")
    assert len(sessions(engine)) == 3


@instrumented
async def test_synchronous_tools(config: Any, connected: Any, engine: Any) -> None:
    """Run synchronous tools in a thread, where an agent has an event loop of its own."""

    @tool
    def consult(question: str) -> str:
        """Ask an expert."""
        asyncio.run(ask_once(connected, "expert"))
        return "done"

    await agent_of(config, "chief", tools=[consult]).ask("Work.")
    assert are_right(engine, "chief", "expert")
    assert len(sessions(engine)) == 1


@instrumented
async def test_subtasks_have_no_stage_each(config: Any, engine: Any) -> None:
    """Give no stage to single subtasks, because their agents' names are numbers."""
    chief = agent_of(config, "chief", tasks=TaskConfig(prompt="flow/chief/subtask"))
    await asyncio.gather(*(chief.ask("Work.") for _ in range(NUM_RUNS)))
    assert are_right(engine, "chief", "chief/subtask")
    assert set(sessions(engine).values()) == {3}


class Report(BaseModel):
    title: str


@instrumented
async def test_objects(config: Any, engine: Any) -> None:
    reply = await agent_of(config, "writer", response_schema=Report).ask("Write.")
    assert await reply.content() == Report(title="Why?")
    assert are_right(engine, "writer")


@asynccontextmanager
async def conversing(planner: Agent, reviewer: Agent) -> AsyncIterator[tuple[Any, Any]]:
    hub = await Hub.open(MemoryKnowledgeStore(), ttl_sweep_interval=0)
    first, second = await hub.register(planner), await hub.register(reviewer)
    channel = await first.open(type="conversation", target=second.agent_id)
    try:
        await channel.send("Plan.", audience=[second.agent_id])
        yield hub, channel
    finally:
        await channel.close()
        await hub.close()


async def num_texts(hub: Any, channel_id: str) -> int:
    return sum(one.event_type == EV_TEXT for one in await hub.read_wal(channel_id))


@instrumented
async def test_networks(config: Any, engine: Any) -> None:
    """Let two agents answer each other until they are stopped."""
    planner, reviewer = agent_of(config, "planner"), agent_of(config, "reviewer")
    async with conversing(planner, reviewer) as (hub, channel):
        while await num_texts(hub, channel.channel_id) < 4:  # noqa: ASYNC110 (no event is set)
            await asyncio.sleep(0)
    assert are_right(engine, "planner", "reviewer")
    assert list(sessions(engine)) == [channel.channel_id]


@instrumented
def test_threads(connected: Any, engine: Any) -> None:
    """Use an event loop in each thread."""
    asking = [ask_once(connected, name) for name in ["planner", "writer"] * 4]
    threads = [threading.Thread(target=asyncio.run, args=(one,)) for one in asking]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(engine.requests) == 8
    assert are_right(engine, "planner", "writer")


@instrumented
async def test_a_name_by_hand_stays(config: Any, engine: Any) -> None:
    with stage("mine", session="run-1"):
        await agent_of(config, "writer").ask("Work.")
    assert [stage for _, stage in told(engine)] == ["flow/mine"]
    assert sessions(engine) == {"run-1": 1}


async def test_it_can_be_undone_in_any_order(config: Any, engine: Any) -> None:
    before = dict(vars(Agent))
    agent = agent_of(config, "writer")
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    first()
    await agent.ask("Work.")
    last()
    await agent.ask("Work.")
    assert [stage for _, stage in told(engine)] == ["last/writer", "default"]
    assert dict(vars(Agent)) == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = dict(vars(Agent))
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert dict(vars(Agent)) == before


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # AG2 closes no connection
def test_the_block_runs() -> None:
    (block,) = blocks("AG2")
    names, stages = run(block)
    assert stages == ["newsroom/writer", "newsroom/researcher", "newsroom/writer"]
    assert names["answer"] == "Hello, wörld!"
    del names
    gc.collect()
