"""AutoGen: each agent's system message is its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import (
    AgentId,
    CancellationToken,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from autogen_core.models import SystemMessage, UserMessage

from agentspec.adapters.openai import stage
from tests.adapters.support.told import sessions, told

NUM_RUNS = 32


def agent_of(model: Any, name: str, **more: Any) -> AssistantAgent:
    return AssistantAgent(name, model, system_message=f"flow/{name}", **more)


def team_of(model: Any, *names: str, **more: Any) -> RoundRobinGroupChat:
    return RoundRobinGroupChat([agent_of(model, name) for name in names], max_turns=len(names), **more)


def are_right(engine: Any, *names: str) -> bool:
    """Return True if every call had its expected stage, and exactly the named stages were called."""
    told_stages = {expected for expected, _ in told(engine)}
    expected = {f"flow/{name}" for name in names}
    return told_stages == expected and all(expected == stage for expected, stage in told(engine))


async def run(runner: Any) -> None:
    await runner.run(task="Work.")


async def run_stream(runner: Any) -> None:
    assert [part async for part in runner.run_stream(task="Work.")]


WAYS: tuple[Callable[[Any], Awaitable[None]], ...] = (run, run_stream)
every_way = pytest.mark.parametrize("way", WAYS)
pytestmark = pytest.mark.usefixtures("instrumented")


@every_way
@pytest.mark.parametrize("is_streaming", [False, True])
async def test_teams_side_by_side(model: Any, engine: Any, way: Any, is_streaming: bool) -> None:
    teams = []
    for _ in range(NUM_RUNS):
        agents = [agent_of(model, name, model_client_stream=is_streaming) for name in ("planner", "writer")]
        teams.append(RoundRobinGroupChat(agents, max_turns=2))
    await asyncio.gather(*map(way, teams))
    assert len(engine.requests) == NUM_RUNS * 2
    assert are_right(engine, "planner", "writer")
    assert list(sessions(engine).values()) == [2] * NUM_RUNS


async def test_a_conversation_that_goes_on_is_one_session(model: Any, engine: Any) -> None:
    team = team_of(model, "planner", "writer")
    await team.run(task="Work.")
    await team.run(task="More.")
    assert list(sessions(engine).values()) == [4]


@every_way
async def test_lone_agents(model: Any, engine: Any, way: Any) -> None:
    await asyncio.gather(*(way(agent_of(model, name)) for name in ("planner", "writer")))
    assert are_right(engine, "planner", "writer")
    assert len(sessions(engine)) == 2


async def test_an_agent_is_told_messages(model: Any, engine: Any) -> None:
    message = TextMessage(content="Work.", source="user")
    await agent_of(model, "writer").on_messages([message], CancellationToken())
    assert are_right(engine, "writer")


async def test_between_the_parts_of_a_stream(model: Any, engine: Any) -> None:
    """Interleave two streams in one task. Between their parts the task itself calls the model."""
    streams = [agent_of(model, name).run_stream(task="Work.") for name in ("planner", "writer")]
    async for _ in streams[0]:
        await anext(streams[1], None)
        await model.create([SystemMessage(content="flow"), UserMessage(content="hi", source="user")])
    assert all(expected == stage for expected, stage in told(engine))
    assert {stage for _, stage in told(engine)} == {"flow/planner", "flow/writer", "flow"}


@every_way
async def test_teams_of_teams(model: Any, engine: Any, way: Any) -> None:
    inner = team_of(model, "planner", "writer", name="desk")
    mind = SocietyOfMindAgent("mind", team_of(model, "critic"), model, instruction="flow/mind")
    await way(RoundRobinGroupChat([inner, mind], max_turns=2))
    assert are_right(engine, "planner", "writer", "critic", "mind")
    assert len(sessions(engine)) == 1


async def test_work_is_handed_on(model: Any, engine: Any) -> None:
    chief = agent_of(model, "chief", handoffs=["writer"])
    team = Swarm([chief, agent_of(model, "writer")], termination_condition=MaxMessageTermination(5))
    await team.run(task="Have it written.")
    assert are_right(engine, "chief", "writer")
    assert len(sessions(engine)) == 1


async def test_who_speaks_next(model: Any, engine: Any) -> None:
    agents = [agent_of(model, name, description="helps") for name in ("planner", "writer")]
    prompt = "flow/SelectorGroupChatManager"
    await SelectorGroupChat(agents, model, max_turns=3, selector_prompt=prompt).run(task="Work.")
    assert are_right(engine, "planner", "writer", "SelectorGroupChatManager")
    assert len(sessions(engine)) == 1


async def test_an_orchestrator(model: Any, engine: Any) -> None:
    team = MagenticOneGroupChat([agent_of(model, "writer", description="writes")], model, max_turns=1)
    with pytest.raises(ValueError, match="LedgerEntry"):  # the engine's answer is no plan
        await team.run(task="Work.")
    assert {stage for _, stage in told(engine)} == {"flow/MagenticOneOrchestrator"}


async def test_tools_that_run_agents_teams_and_models(model: Any, engine: Any) -> None:
    async def consult(question: str) -> str:
        """Ask the model itself."""
        await model.create([SystemMessage(content="flow/chief"), UserMessage(content="hi", source="chief")])
        return "done"

    expert = AgentTool(agent_of(model, "expert", description="knows"))
    desk = TeamTool(team_of(model, "planner", "writer"), name="desk", description="works")
    for tool in (expert, desk, consult):
        await agent_of(model, "chief", tools=[tool], reflect_on_tool_use=True).run(task="Work.")
    assert are_right(engine, "chief", "expert", "planner", "writer")
    assert len(sessions(engine)) == 3


@dataclass
class Question:
    text: str


class Worker(RoutedAgent):
    """An agent that calls a model and then sends to the next agent."""

    def __init__(self, model: Any, following: str | None = None) -> None:
        super().__init__("works")
        self._model = model
        self._following = following

    @message_handler
    async def answer(self, message: Question, ctx: MessageContext) -> str:
        asked = [
            SystemMessage(content=f"flow/{self.id.type}"),
            UserMessage(content=message.text, source="user"),
        ]
        result = await self._model.create(asked, cancellation_token=ctx.cancellation_token)
        if self._following:
            await self.send_message(message, AgentId(self._following, self.id.key))
        return str(result.content)


@pytest.mark.parametrize("key", ["default", "conversation"])
async def test_agents_of_the_core(model: Any, engine: Any, key: str) -> None:
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "extract", lambda: Worker(model, "combine"))
    await Worker.register(runtime, "combine", lambda: Worker(model))
    runtime.start()
    asking = [
        runtime.send_message(Question("hi"), AgentId("extract", key if key == "default" else f"{key}{num}"))
        for num in range(NUM_RUNS)
    ]
    await asyncio.gather(*asking)
    await runtime.stop_when_idle()
    assert are_right(engine, "extract", "combine")
    assert len(sessions(engine)) == (1 if key == "default" else NUM_RUNS)
    assert (None in sessions(engine)) == (key == "default")


def test_threads(new_model: Callable[[], Any], engine: Any) -> None:
    """Use an event loop and a client in each thread."""

    async def work() -> None:
        model = new_model()
        await team_of(model, "planner", "writer").run(task="Work.")
        await model.close()

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(engine.requests) == 16
    assert are_right(engine, "planner", "writer")
    assert list(sessions(engine).values()) == [2] * 8


async def test_a_name_by_hand_stays(model: Any, engine: Any) -> None:
    with stage("mine", session="run-1"):
        await team_of(model, "planner", "writer").run(task="Work.")
    assert [stage for _, stage in told(engine)] == ["flow/mine"] * 2
    assert sessions(engine) == {"run-1": 2}
