"""DSPy: a program's instructions are its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest

from agentspec.adapters.openai import stage
from tests.adapters.support.told import sessions

NUM_RUNS = 32
STAGES = ["facts", "draft", "steps[0]", "steps[1]", "desk/ask", "by_name['a']", "facts"]
pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from LiteLLM
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # from LiteLLM
    pytest.mark.filterwarnings("ignore:(Pydantic serializer warnings|Item '.*' on TypedDict)"),
]


def signature(name: str) -> Any:
    return dspy.Signature("topic -> answer", f"flow/{name}")


class Desk(dspy.Module):
    """A module inside another one."""

    def __init__(self) -> None:
        self.ask = dspy.Predict(signature("Article/desk/ask"))

    def forward(self, topic: str) -> Any:
        return self.ask(topic=topic)

    async def aforward(self, topic: str) -> Any:
        return await self.ask.acall(topic=topic)


class Article(dspy.Module):
    """A program with modules by attribute, in a list and in a dictionary."""

    def __init__(self) -> None:
        self.facts = dspy.Predict(signature("Article/facts"))
        self.draft = dspy.ChainOfThought(signature("Article/draft"))
        self.steps = [dspy.Predict(signature(f"Article/steps[{num}]")) for num in range(2)]
        self.desk = Desk()
        self.by_name = {"a": dspy.Predict(signature("Article/by_name['a']"))}

    @property
    def parts(self) -> list[Any]:
        return [self.facts, self.draft, *self.steps, self.desk, self.by_name["a"], self.facts]

    def forward(self, topic: str) -> Any:
        return [part(topic=topic) for part in self.parts][-1]

    async def aforward(self, topic: str) -> Any:
        return [await part.acall(topic=topic) for part in self.parts][-1]


def objective(request: Any) -> str:
    """Return the instructions, which end DSPy's system prompt."""
    return str(request.prompt[0]["content"].split()[-1])


def are_right(engine: Any) -> bool:
    """Return True if every call had its expected stage."""
    return all(objective(request) == request.tags.stage.name for request in engine.requests)


async def in_a_thread(program: Any) -> None:
    await dspy.asyncify(program)(topic="bees")


async def awaited(program: Any) -> None:
    await program.acall(topic="bees")


async def streamed(program: Any) -> None:
    listeners = [dspy.streaming.StreamListener("answer", predict=program.facts, predict_name="facts")]
    assert [part async for part in dspy.streamify(program, stream_listeners=listeners)(topic="bees")]


async def streamed_and_awaited(program: Any) -> None:
    listeners = [dspy.streaming.StreamListener("answer", predict=program.facts, predict_name="facts")]
    streaming = dspy.streamify(program, stream_listeners=listeners, is_async_program=True)
    assert [part async for part in streaming(topic="bees")]


def test_a_program(engine: Any, stages: Callable[[], list[str]]) -> None:
    Article()(topic="bees")
    assert stages() == [f"flow/Article/{name}" for name in STAGES]
    assert are_right(engine)
    assert list(sessions(engine).values()) == [len(STAGES)]


@pytest.mark.parametrize("way", [in_a_thread, awaited, streamed, streamed_and_awaited])
async def test_every_way_of_calling_a_program(model: Any, engine: Any, way: Any) -> None:
    await asyncio.gather(*(way(Article()) for _ in range(4)))
    assert are_right(engine)
    assert list(sessions(engine).values()) == [len(STAGES)] * 4
    await model.aclose()


async def test_runs_side_by_side(model: Any, engine: Any) -> None:
    """Run one program many times concurrently."""
    program = Desk()
    await asyncio.gather(*(program.acall(topic="bees") for _ in range(NUM_RUNS)))
    assert [request.tags.stage.name for request in engine.requests] == ["flow/Desk/ask"] * NUM_RUNS
    assert list(sessions(engine).values()) == [1] * NUM_RUNS
    await model.aclose()


def test_threads(model: Any, engine: Any) -> None:
    def run(program: Any) -> None:
        with dspy.context(lm=model):
            program(topic="bees")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, [Article() for _ in range(8)]))
    assert are_right(engine)
    assert list(sessions(engine).values()) == [len(STAGES)] * 8


class Team(dspy.Module):
    """A program that calls many modules concurrently, in DSPy's threads."""

    def __init__(self) -> None:
        self.ask = dspy.Predict(signature("Team/ask"))

    def forward(self, topic: str) -> None:
        calls = [(self.ask, dspy.Example(topic=topic).with_inputs("topic")) for _ in range(NUM_RUNS)]
        dspy.Parallel(num_threads=8, disable_progress_bar=True)(calls)


def test_threads_of_dspy(engine: Any) -> None:
    Team()(topic="bees")
    assert are_right(engine)
    assert list(sessions(engine).values()) == [NUM_RUNS]


def test_evaluations_are_runs(engine: Any) -> None:
    devset = [dspy.Example(topic="bees").with_inputs("topic") for _ in range(4)]
    evaluate = dspy.Evaluate(devset=devset, metric=lambda *_: 1.0, num_threads=2, display_progress=False)
    evaluate(Team())
    assert are_right(engine)
    assert list(sessions(engine).values()) == [NUM_RUNS] * 4


class Sum(dspy.Signature):
    """Add up."""

    topic: str = dspy.InputField()
    answer: str = dspy.OutputField()


def test_modules_without_a_name(stages: Callable[[], list[str]]) -> None:
    for module in (
        dspy.Predict("topic -> answer"),
        dspy.Predict(Sum),
        dspy.ChainOfThought("topic -> answer"),
    ):
        module(topic="bees")
    assert stages() == ["flow/topic -> answer", "flow/Sum", "flow/topic -> reasoning, answer"]


def test_a_model_by_itself(model: Any, stages: Callable[[], list[str]]) -> None:
    model("hi")
    assert stages() == ["flow"]


def test_a_name_by_hand_stays(engine: Any, stages: Callable[[], list[str]]) -> None:
    with stage("mine", session="run-1"):
        Team()(topic="bees")
    assert set(stages()) == {"flow/mine"}
    assert list(sessions(engine)) == ["run-1"]
