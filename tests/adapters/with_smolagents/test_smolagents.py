"""smolagents: an agent's instructions name its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai._base_client import BaseClient
from smolagents import (
    AgentError,
    CodeAgent,
    LiteLLMModel,
    LiteLLMRouterModel,
    LogLevel,
    MultiStepAgent,
    OpenAIModel,
    ToolCallingAgent,
    local_python_executor,
    tool,
)

from agentspec.adapters.litellm import instrument as instrument_litellm
from agentspec.adapters.openai import stage
from agentspec.adapters.smolagents import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run

Stages = Callable[[], list[str]]
ID = "3f2504e04f8911d39a0c0305e82c3301"
NUM_RUNS = 32
PER_RUN = sorted(["writer"] * 2 + ["team"] * 3 + ["researcher"])


@pytest.fixture
def model(url: str, engine: Any) -> Iterator[OpenAIModel]:
    client = {"max_retries": 0, "timeout": 20}
    model = OpenAIModel("scripted", url, api_key="none", client_kwargs=client, tool_choice="auto")
    yield model
    model.client.close()


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument()
    yield
    undo()


def expecting(stage: str, code: str = "") -> dict[str, Any]:
    """Return the options of a quiet agent, with the stage and its code in the instructions."""
    told = f"stage={stage};" + (f" Run `{code}`" if code else "")
    return {"instructions": told, "verbosity_level": LogLevel.OFF, "max_steps": 3}


def team_of(model: OpenAIModel, **options: Any) -> MultiStepAgent:
    """Return an agent that manages a second one, which manages a third and has a tool that calls a model."""

    @tool
    def search(topic: str) -> str:
        """Asks without any agent.

        Args:
            topic: What for.
        """
        ask(model, "team")
        return "found"

    below = expecting("researcher")
    researcher = ToolCallingAgent([], model, name="researcher", description="Looks up.", **below, **options)
    code = "search('a'); print(researcher('hi'))"
    team = CodeAgent(
        [search],
        model,
        name="team",
        description="Writes.",
        managed_agents=[researcher],
        **expecting("team", code),
        **options,
    )
    return ToolCallingAgent([], model, name="writer", managed_agents=[team], **expecting("writer"), **options)


def told(engine: Any) -> list[tuple[str, str]]:
    """Return, for each call, the stage expected and the stage received."""
    prompts = [str(request.prompt[0]["content"]) for request in engine.requests]
    expected = [re.findall("stage=(.*?);", prompt)[0] for prompt in prompts]
    return list(zip(expected, (request.tags.stage.name for request in engine.requests), strict=True))


def sessions(engine: Any) -> dict[str | None, list[str]]:
    """Return the stages of each session."""
    found: dict[str | None, list[str]] = {}
    for request in engine.requests:
        found.setdefault(request.tags.session, []).append(request.tags.stage.name)
    return {session: sorted(stages) for session, stages in found.items()}


def ask(model: OpenAIModel, expected: str = "default") -> None:
    """Call the model outside any agent."""
    asked: Any = [{"role": "user", "content": f"stage={expected};"}]
    model.client.chat.completions.create(model="scripted", messages=asked)


def follow(agent: MultiStepAgent) -> None:
    assert list(agent.run("hi", stream=True))


async def in_a_thread(agent: MultiStepAgent) -> None:
    await asyncio.to_thread(agent.run, "hi")


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("is_streaming", [False, True])
def test_threads(model: OpenAIModel, engine: Any, is_streaming: bool) -> None:
    """Follow every other run step by step."""
    teams = [team_of(model, stream_outputs=is_streaming) for _ in range(NUM_RUNS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda team, num: follow(team) if num % 2 else team.run("hi"), teams, range(NUM_RUNS)))
    assert len(engine.requests) == NUM_RUNS * len(PER_RUN)
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * NUM_RUNS


@pytest.mark.usefixtures("instrumented")
async def test_tasks(model: OpenAIModel, engine: Any) -> None:
    await asyncio.gather(*(in_a_thread(team_of(model)) for _ in range(8)))
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [PER_RUN] * 8


@pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning")  # from LiteLLM
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.usefixtures("instrumented")
async def test_models_of_litellm(url: str, engine: Any) -> None:
    """Call from inside an event loop, where a router of LiteLLM runs in a thread of its own."""
    undo = instrument_litellm()
    options = {"api_base": url, "api_key": "none"}
    listed = [{"model_name": "one", "litellm_params": {"model": "hosted_vllm/scripted", **options}}]
    for model in (
        LiteLLMModel("hosted_vllm/scripted", **options, tool_choice="auto"),
        LiteLLMModel("openai/scripted", **options, tool_choice="auto"),
        LiteLLMRouterModel("one", model_list=listed, **options, tool_choice="auto"),
    ):
        below = expecting("writer")
        writer = ToolCallingAgent([], model, name="writer", description="Writes.", **below)
        above = expecting("team", "writer('hi')")
        CodeAgent([], model, name="team", managed_agents=[writer], **above).run("hi")
    undo()
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine).values()) == [["team", "team", "writer"]] * 3


@pytest.mark.usefixtures("instrumented")
def test_plans_and_last_answers(model: OpenAIModel, stages: Stages) -> None:
    options = {**expecting("writer", "print(1)"), "max_steps": 1, "planning_interval": 1}
    CodeAgent([], model, name="writer", **options).run("hi")
    assert stages() == ["writer"] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # smolagents yields at the end
@pytest.mark.usefixtures("instrumented")
def test_what_is_outside_a_run_has_no_agent(model: OpenAIModel, engine: Any) -> None:
    ask(model)
    for _ in team_of(model).run("hi", stream=True):
        ask(model)
    for _ in team_of(model).run("hi", stream=True):
        break
    ask(model)
    with pytest.raises(AgentError):
        CodeAgent([], OpenAIModel("missing", api_key="none"), name="writer", max_steps=1).run("")
    ask(model)
    assert {"default", "writer", "team"} <= {stage for _, stage in told(engine)}
    assert all(expected == stage for expected, stage in told(engine))


def test_names(model: OpenAIModel, engine: Any) -> None:
    undo = instrument(workflow="flow")
    for name in (None, f"planner_{ID}", "é" * 60):
        ToolCallingAgent([], model, name=name, **expecting("")).run("hi")
    with stage("named", session="run-1"):
        team_of(model).run("hi")
    undo()
    names = [request.tags.stage.name for request in engine.requests]
    assert names == ["flow", "flow/planner", "flow", *["flow/named"] * len(PER_RUN)]
    assert {request.tags.session for request in engine.requests[3:]} == {"run-1"}


def test_it_can_be_undone(model: OpenAIModel, stages: Stages) -> None:
    owners = (MultiStepAgent, local_python_executor, BaseClient)
    before = [dict(vars(owner)) for owner in owners]
    writer = ToolCallingAgent([], model, name="writer", **expecting("writer"))
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    writer.run("hi")
    last()
    last()
    writer.run("hi")
    assert stages() == ["last/writer", "default"]
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = dict(vars(MultiStepAgent))
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert dict(vars(MultiStepAgent)) == before


def test_the_block_to_copy_runs() -> None:
    (block,) = blocks("smolagents")
    _, found = run(block)
    assert found == ["research/search", "research/writer"]
