"""Single calls: every method of calling, and LangChain's wrappers around a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableParallel
from langchain_core.tools import tool
from pydantic import BaseModel, ValidationError

from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.langchain import AgentSpecLLM, ChatAgentSpec
from agentspec.adapters.openai import stage
from agentspec.errors import StageError
from tests.adapters.with_langchain.asking import WAYS, Ask, Stages
from tests.gateway.support.scripted import STEPS

TEXT = "".join(STEPS)
NAMED = {"metadata": {"agentspec_stage": "flow/named"}}
every_way = pytest.mark.parametrize("ask", WAYS)


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sun in {city}"


class Joke(BaseModel):
    setup: str


@every_way
async def test_a_call_names_its_stage(model: Any, ask: Ask, stages: Stages) -> None:
    await ask(model, "hi", NAMED)
    assert set(stages()) == {"flow/named"}


@every_way
async def test_a_model_is_named_by_its_config(model: Any, ask: Ask, stages: Stages) -> None:
    await ask(model.with_config(tags=["agentspec:flow/tagged"]), "hi", None)
    await ask(model.with_config(tags=["summarise"]), "hi", None)
    assert set(stages()) == {"flow/tagged", "summarise"}


@every_way
async def test_a_model_has_a_stage_of_its_own(
    fields: dict[str, Any], engine: Any, ask: Ask, stages: Stages
) -> None:
    model = ChatAgentSpec(**fields, stage="extract", workflow="sql")
    await ask(model, "hi", None)
    await ask(model, "hi", {"metadata": {"agentspec_stage": "other"}})
    assert set(stages()) == {"sql/extract", "sql/other"}


async def test_each_call_of_a_batch_has_its_own(model: Any, engine: Any) -> None:
    configs: list[Any] = [{"metadata": {"agentspec_stage": f"s{num}"}} for num in range(8)]
    model.batch([one["metadata"]["agentspec_stage"] for one in configs], configs)
    await model.abatch([one["metadata"]["agentspec_stage"] for one in configs], configs)
    assert len(engine.requests) == 16
    assert all(one.prompt[0]["content"] == one.tags.stage.name for one in engine.requests)


def test_streams_that_take_turns_keep_their_stages(model: Any, stages: Stages) -> None:
    streams = [model.stream("hi", {"metadata": {"agentspec_stage": name}}) for name in "ab"]
    for _ in zip(*streams, strict=True):
        pass
    assert sorted(stages()) == ["a", "b"]


def test_a_stage_does_not_outlive_its_call(model: Any, stages: Stages) -> None:
    for _ in model.stream("hi", NAMED):
        break
    model._generate([HumanMessage("hi")])
    assert stages() == ["flow/named", "default"]


def test_in_chains_and_parallel_ones(model: Any, stages: Stages) -> None:
    one, other = (model.with_config(tags=[name]) for name in ("one", "other"))
    RunnableParallel(a=one | (lambda message: message), b=other).invoke("hi")
    assert sorted(stages()) == ["one", "other"]


def test_the_calls_of_a_chain_are_a_session(model: Any, engine: Any) -> None:
    chain = model | (lambda message: message.text) | model
    chain.invoke("hi")
    chain.invoke("hi")
    model.invoke("hi")
    first, second, third, fourth, alone = [request.tags.session for request in engine.requests]
    assert first == second != third == fourth
    assert first is not None
    assert alone is None


def test_what_is_around_is_told_where_a_call_tells_nothing(model: Any, stages: Stages, engine: Any) -> None:
    with calling(Caller(role=("writer",), session="run-1")):
        model.invoke("hi")
        model.invoke("hi", {"tags": ["search"]})
    with stage("plan", session="run-2"):
        model.invoke("hi", {"tags": ["search"]})
        model.invoke("hi", {"tags": ["agentspec:named"]})
    assert stages() == ["writer", "search", "plan", "named"]
    assert [request.tags.session for request in engine.requests] == ["run-1", "run-1", "run-2", "run-2"]


def test_a_thread_is_a_session_and_no_stage(model: Any, engine: Any) -> None:
    model.invoke("hi", {"metadata": {"thread_id": "thread 1/é"}})
    model.invoke("hi", {"metadata": {"thread_id": "t" * 300}})
    assert [request.tags.session for request in engine.requests] == ["thread%201%2F%C3%A9", None]
    assert {request.tags.stage.name for request in engine.requests} == {"default"}


def test_tools(model: Any, stages: Stages) -> None:
    bound = model.bind_tools([weather])
    message = bound.invoke("hi", NAMED)
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("weather", {"city": "Paris"})]
    assert stages() == ["flow/named"]


def test_structured_output(model: Any, stages: Stages) -> None:
    told = model.with_structured_output(Joke, include_raw=True).invoke("hi", NAMED)
    assert told["parsed"] == Joke(setup="Why?")
    assert told["raw"].response_metadata["speculative_decoding"]["num_draft_tokens"] == 8
    assert stages() == ["flow/named"]


async def test_what_speculation_did_is_told(model: Any) -> None:
    whole = [model.invoke("hi"), await model.ainvoke("hi")]
    streamed = [list(model.stream("hi")), [chunk async for chunk in model.astream("hi")]]
    for message in (*whole, *(sum(chunks[1:], chunks[0]) for chunks in streamed)):
        assert message.text == TEXT
        figures = message.response_metadata["speculative_decoding"]
        assert (figures["num_draft_tokens"], figures["num_accepted_draft_tokens"]) == (8, 6)
        assert figures["accepted_tokens_by_source"]["stage"] == 4


async def test_callbacks_and_usage(model: Any) -> None:
    class Told(BaseCallbackHandler):
        def __init__(self) -> None:
            self.events: list[str] = []

        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            self.events.append("start")

        def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
            self.events.append("end")

    told = Told()
    with get_usage_metadata_callback() as usage:
        model.invoke("hi", {"callbacks": [told]})
        await model.ainvoke("hi", {"callbacks": [told]})
        async for _ in model.astream("hi", {"callbacks": [told]}):
            pass
    assert told.events == ["start", "end"] * 3
    assert usage.usage_metadata["scripted"]["total_tokens"] == 3 * 15


async def test_responses(model: Any, stages: Stages) -> None:
    model = model.model_copy(update={"use_responses_api": True})
    model.invoke("hi", NAMED)
    await model.ainvoke("hi", NAMED)
    assert list(model.stream("hi", NAMED))
    assert [chunk async for chunk in model.astream("hi", NAMED)]
    assert stages() == ["flow/named"] * 4


def test_what_is_given_by_hand_stays(model: Any, stages: Stages) -> None:
    model.invoke("hi", NAMED, extra_headers={"X-AgentSpec-Stage": "by/hand"})
    model.model_copy(update={"default_headers": {"X-AgentSpec-Stage": "of/it"}}).invoke("hi", NAMED)
    assert stages() == ["by/hand", "default"]  # the copy shares the first model's client


@pytest.mark.parametrize("name", ["", "a//b", "a "])
def test_a_bad_name_is_refused(model: Any, engine: Any, name: str) -> None:
    with pytest.raises(StageError, match="bad stage segment"):
        model.invoke("hi", {"metadata": {"agentspec_stage": name}})
    assert engine.requests == []
    with pytest.raises(ValidationError, match="bad stage segment"):
        ChatAgentSpec(model="scripted", api_key="none", stage="a//b")


def test_ids_never_become_stages(model: Any, stages: Stages) -> None:
    model.invoke("hi", {"tags": ["3f2504e0-4f89-11d3-9a0c-0305e82c3301"]})
    model.invoke("hi", {"tags": ["planner-3f2504e0-4f89-11d3-9a0c-0305e82c3301"]})
    assert stages() == ["default", "planner"]


@pytest.mark.parametrize("ask", [way for way in WAYS if way.__name__ not in ("batch", "abatch")])
async def test_completions(llm: Callable[..., AgentSpecLLM], ask: Ask, stages: Stages) -> None:
    await ask(llm(stage="complete", workflow="flow"), "hi", None)
    await ask(llm(workflow="flow"), "hi", {"metadata": {"agentspec_stage": "named"}})
    assert stages() == ["flow/complete", "flow/named"]


async def test_batches_of_completions(llm: Callable[..., AgentSpecLLM], engine: Any) -> None:
    model = llm(stage="complete")
    configs: Any = [{"metadata": {"agentspec_stage": name}} for name in "abc"]
    assert model.batch(["hi", "ho"]) == await model.abatch(["hi", "ho"]) == [TEXT, TEXT]
    model.batch(list("abc"), configs)
    await model.abatch(list("abc"), configs)
    assert [request.tags.stage.name for request in engine.requests[:4]] == ["complete"] * 4
    assert all(request.prompt == request.tags.stage.name for request in engine.requests[4:])
    assert len(engine.requests) == 10
