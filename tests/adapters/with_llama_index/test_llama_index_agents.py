"""Agents and steps: each system prompt is the expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from agentspec.adapters.openai import stage
from tests.adapters.support.told import are_right, sessions, told

NUM_RUNS = 32
pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # LlamaIndex uses deprecated pydantic names
]


def agent_of(llm: Any, name: str, kind: Any = FunctionAgent, **more: Any) -> Any:
    return kind(name=name, description="helps", system_prompt=f"flow/{name}", llm=llm, **more)


def asked(name: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content=f"flow/{name}"), ChatMessage(role="user", content="hi")]


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_lone_agents_side_by_side(llm: Any, engine: Any, is_streaming: bool) -> None:
    agents = [agent_of(llm, name, streaming=is_streaming) for name in ("planner", "writer")]
    await asyncio.gather(*(agents[num % 2].run("Work.") for num in range(NUM_RUNS)))
    assert len(engine.requests) == NUM_RUNS
    assert are_right(engine, "planner", "writer")
    assert list(sessions(engine).values()) == [1] * NUM_RUNS


async def test_an_agent_that_is_followed(llm: Any, engine: Any) -> None:
    handler = agent_of(llm, "writer").run("Work.", run_id="run-1")
    assert [event async for event in handler.stream_events()]
    assert are_right(engine, "writer")
    assert sessions(engine) == {"run-1": 1}


async def test_an_agent_that_thinks_aloud(llm: Any, engine: Any) -> None:
    """Run an agent that finds no answer in the engine's text, so it asks again."""
    agent = agent_of(llm, "thinker", ReActAgent)
    await agent.run("Work.", max_iterations=3, early_stopping_method="generate")
    assert {stage for _, stage in told(engine)} == {"flow/thinker"}


async def test_teams_side_by_side(llm: Any, engine: Any) -> None:
    """Hand off to the agent named in quotes. That agent's own tool calls a model."""

    async def consult(question: str) -> str:
        """Ask the model itself."""
        await llm.achat(asked("writer"))
        return "done"

    def team() -> AgentWorkflow:
        chief = agent_of(llm, "chief", can_handoff_to=["writer"])
        writer = agent_of(llm, "writer", tools=[consult])
        return AgentWorkflow(agents=[chief, writer], root_agent="chief")

    await asyncio.gather(*(team().run("Have 'writer' do it.") for _ in range(NUM_RUNS)))
    assert are_right(engine, "chief", "writer")
    calls = len(engine.requests) // NUM_RUNS
    assert list(sessions(engine).values()) == [calls] * NUM_RUNS


async def test_tools_that_run_agents(llm: Any, engine: Any) -> None:
    async def consult(question: str) -> str:
        """Ask an expert."""
        await agent_of(llm, "expert").run(question)
        return "done"

    await agent_of(llm, "chief", tools=[consult]).run("Work.")
    assert are_right(engine, "chief", "expert")
    assert len(sessions(engine)) == 1


class Planned(Event):
    """There is a plan."""


class Part(Event):
    """A part of the work."""


class Done(Event):
    """A part is done."""


class Inner(Workflow):
    """A workflow in a step of another one."""

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self.llm = llm

    @step
    async def look(self, ev: StartEvent) -> StopEvent:
        await self.llm.achat(asked("search/look"))
        return StopEvent()


class Pipeline(Workflow):
    """A workflow with a step in a thread, three parallel steps, a nested workflow and an agent."""

    def __init__(self, llm: Any) -> None:
        super().__init__(timeout=60)
        self.llm = llm

    @step
    def plan(self, ev: StartEvent) -> Planned:
        self.llm.chat(asked("plan"))
        assert list(self.llm.stream_chat(asked("plan")))
        return Planned()

    @step
    async def split(self, ctx: Context, ev: Planned) -> Part | None:
        for _ in range(3):
            ctx.send_event(Part())
        return None

    @step(num_workers=3)
    async def search(self, ev: Part) -> Done:
        await Inner(self.llm).run()
        await self.llm.achat(asked("search"))
        return Done()

    @step
    async def write(self, ctx: Context, ev: Done) -> StopEvent | None:
        if ctx.collect_events(ev, [Done] * 3) is None:
            return None
        await agent_of(self.llm, "writer").run("Write.")
        assert [part async for part in await self.llm.astream_chat(asked("write"))]
        return StopEvent()


async def test_workflows_side_by_side(llm: Any, engine: Any) -> None:
    await asyncio.gather(*(Pipeline(llm).run() for _ in range(8)))
    assert are_right(engine, "plan", "search", "search/look", "writer", "write")
    assert list(sessions(engine).values()) == [10] * 8


def test_threads(new_llm: Any, url: str, engine: Any) -> None:
    """Use an event loop and a client in each thread."""

    async def work() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            await agent_of(new_llm(async_openai_client=client), "writer").run("Work.")

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(engine.requests) == 8
    assert are_right(engine, "writer")
    assert list(sessions(engine).values()) == [1] * 8


async def test_a_name_by_hand_stays(llm: Any, engine: Any) -> None:
    with stage("mine", session="run-1"):
        await agent_of(llm, "writer").run("Work.")
    assert [stage for _, stage in told(engine)] == ["flow/mine"]
    assert sessions(engine) == {"run-1": 1}
