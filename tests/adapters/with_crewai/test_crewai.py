"""CrewAI: each agent's role is in its system prompt, and the engine records the stage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Process, Task
from crewai.flow import Flow, listen, start
from crewai.flow.runtime import Flow as RuntimeFlow
from crewai.tools import tool
from pydantic import BaseModel

from agentspec.adapters.crewai import instrument
from agentspec.adapters.openai import stage
from agentspec.errors import StageError
from tests.adapters.support.told import sessions

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # CrewAI uses its own deprecated names
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
ROLES = ("Researcher", "Writer", "Head of Sales/Europe")
NUM_RUNS = 32


def agent_of(llm: Any, role: str, **more: Any) -> Agent:
    return Agent(role=role, goal="help", backstory="none", llm=llm, **more)


def task_of(agent: Agent | None, text: str = "Work.", **more: Any) -> Task:
    return Task(description=text, expected_output="text", agent=agent, **more)


def crew_of(llm: Any, *roles: str, **more: Any) -> Crew:
    agents = [agent_of(llm, role) for role in roles]
    return Crew(agents=agents, tasks=[task_of(agent) for agent in agents], **more)


def told(engine: Any) -> list[tuple[str, str]]:
    """Return, for each call, the role named in its prompt and the stage received."""
    return [
        (request.prompt[0]["content"].removeprefix("You are ").partition(".")[0], request.tags.stage.name)
        for request in engine.requests
    ]


async def plain(crew: Crew) -> None:
    await asyncio.get_running_loop().run_in_executor(None, crew.kickoff)


async def in_a_thread(crew: Crew) -> None:
    await crew.kickoff_async()


async def native(crew: Crew) -> None:
    await crew.akickoff()


async def streamed(crew: Crew) -> None:
    crew.stream = True
    assert await asyncio.to_thread(lambda: list(crew.kickoff()))


async def streamed_in_a_thread(crew: Crew) -> None:
    crew.stream = True
    assert [part async for part in await crew.kickoff_async()]


async def streamed_natively(crew: Crew) -> None:
    crew.stream = True
    assert [part async for part in await crew.akickoff()]


WAYS: tuple[Callable[[Crew], Awaitable[None]], ...] = (
    plain,
    in_a_thread,
    native,
    streamed,
    streamed_in_a_thread,
    streamed_natively,
)


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_of_running_a_crew(llm: Any, engine: Any, way: Any) -> None:
    await way(crew_of(llm, *ROLES))
    await way(crew_of(llm, *ROLES))
    assert told(engine) == [(role, f"flow/{role}") for role in ROLES] * 2
    assert list(sessions(engine).values()) == [3, 3]
    assert None not in sessions(engine)


@pytest.mark.usefixtures("instrumented")
async def test_runs_side_by_side(llm: Any, engine: Any) -> None:
    await asyncio.gather(*(crew_of(llm, *ROLES[1:]).akickoff() for _ in range(NUM_RUNS)))
    assert all(stage == f"flow/{role}" for role, stage in told(engine))
    assert list(sessions(engine).values()) == [2] * NUM_RUNS


@pytest.mark.usefixtures("instrumented")
def test_threads(llm: Any, engine: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Crew.kickoff, [crew_of(llm, *ROLES[1:]) for _ in range(NUM_RUNS)]))
    assert all(stage == f"flow/{role}" for role, stage in told(engine))
    assert list(sessions(engine).values()) == [2] * NUM_RUNS


@pytest.mark.usefixtures("instrumented")
def test_tasks_side_by_side(llm: Any, engine: Any) -> None:
    agents = [agent_of(llm, role) for role in ROLES]
    tasks = [task_of(agent, async_execution=agent is not agents[-1]) for agent in agents]
    Crew(agents=agents, tasks=tasks).kickoff()
    assert sorted(told(engine)) == sorted((role, f"flow/{role}") for role in ROLES)
    assert list(sessions(engine).values()) == [3]


@pytest.mark.usefixtures("instrumented")
def test_a_role_with_a_topic_is_one_stage(llm: Any, engine: Any) -> None:
    for topic in ("bees", "ants"):
        crew_of(llm, "Expert in {topic}\n").kickoff(inputs={"topic": topic})
    assert told(engine) == [(f"Expert in {topic}\n", "flow/Expert in {topic}") for topic in ("bees", "ants")]


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("process", list(Process))
def test_work_is_handed_on(llm: Any, engine: Any, process: Process) -> None:
    """Delegate work to the coworker that the engine fills in: the quoted name."""
    chief = agent_of(llm, "Chief", allow_delegation=True)
    writer = agent_of(llm, "Writer")
    more: dict[str, Any] = {"agents": [chief, writer]}
    if process is Process.hierarchical:
        more = {"agents": [writer], "manager_agent": chief}
    tasks = [task_of(None if process is Process.hierarchical else chief, "Have 'Writer' do it.")]
    Crew(tasks=tasks, process=process, **more).kickoff()
    assert {role for role, _ in told(engine)} == {"Chief", "Writer"}
    assert all(stage == f"flow/{role}" for role, stage in told(engine))
    assert len(sessions(engine)) == 1


@pytest.mark.usefixtures("instrumented")
def test_a_tool_that_runs_an_agent_and_a_model(llm: Any, engine: Any) -> None:
    @tool
    def consult(question: str) -> str:
        """Ask an expert."""
        llm.call("You are Expert. Answer.")  # a call inside the agent
        agent_of(llm, "Critic").kickoff(question)
        return "done"

    expert = agent_of(llm, "Expert", tools=[consult])
    Crew(agents=[expert], tasks=[task_of(expert)]).kickoff()
    assert [role for role, _ in told(engine)][:3] == ["Expert", "Expert", "Critic"]
    assert all(stage == f"flow/{role}" for role, stage in told(engine))
    assert len(sessions(engine)) == 1


class Report(BaseModel):
    title: str


@pytest.mark.usefixtures("instrumented")
def test_what_is_called_for_an_agents_task(llm: Any, engine: Any) -> None:
    """Check a task's output, and convert it to an object."""
    agent = agent_of(llm, "Writer")
    checked = task_of(agent, guardrail="It greets.")
    shaped = task_of(agent, output_pydantic=Report)
    for task in (checked, shaped):
        Crew(agents=[agent], tasks=[task]).kickoff()
    stages = {stage for _, stage in told(engine)}
    assert stages == {"flow/Writer", "flow/Guardrail Agent"}


class Pipeline(Flow[Any]):
    """A flow: the first step calls a model, the next one runs an agent, the last one a crew."""

    llm: Any = None

    @start()
    def plan(self) -> None:
        self.llm.call("You are plan. Plan.")

    @listen(plan)
    async def search(self) -> None:
        await agent_of(self.llm, "Researcher").kickoff("Search.")

    @listen(search)
    def write(self) -> None:
        crew_of(self.llm, "Writer").kickoff()
        self.llm.call("You are write. Write.")


PER_FLOW = ("plan", "Researcher", "Writer", "write")


@pytest.mark.usefixtures("instrumented")
async def test_flows_side_by_side(llm: Any, engine: Any) -> None:
    flows = []
    for _ in range(8):
        flow = Pipeline()
        flow.llm = llm
        flows.append(flow)
    await asyncio.gather(*(flow.kickoff_async() for flow in flows))
    assert all(stage == f"flow/{role}" for role, stage in told(engine))
    assert sessions(engine) == {flow.flow_id: len(PER_FLOW) for flow in flows}


@pytest.mark.usefixtures("instrumented")
async def test_a_lone_agent(llm: Any, engine: Any) -> None:
    agent = agent_of(llm, "Helper")
    await agent.kickoff_async("Help.")
    await asyncio.to_thread(agent.kickoff, "Help.")
    assert told(engine) == [("Helper", "flow/Helper")] * 2
    assert len(sessions(engine)) == 2


@pytest.mark.usefixtures("instrumented")
def test_streams_of_the_model(url: str, engine: Any) -> None:
    llm = LLM(model="openai/scripted", base_url=url, api_key="none", stream=True)
    crew_of(llm, *ROLES).kickoff()
    assert told(engine) == [(role, f"flow/{role}") for role in ROLES]


@pytest.mark.usefixtures("instrumented")
def test_a_name_by_hand_stays(llm: Any, engine: Any) -> None:
    with stage("mine", session="run-1"):
        crew_of(llm, *ROLES).kickoff()
    assert [stage for _, stage in told(engine)] == ["flow/mine"] * 3
    assert sessions(engine) == {"run-1": 3}


def test_it_can_be_undone_in_any_order(llm: Any, engine: Any) -> None:
    owners = (Crew, Task, Agent, RuntimeFlow)
    before = [dict(vars(owner)) for owner in owners]
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    crew_of(llm, "Writer").kickoff()
    last()
    crew_of(llm, "Writer").kickoff()
    assert [stage for _, stage in told(engine)] == ["last/Writer", "default"]
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = dict(vars(Crew))
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert dict(vars(Crew)) == before
