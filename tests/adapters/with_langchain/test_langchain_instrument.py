from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.tracers import context
from langchain_openai import ChatOpenAI, OpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langchain_openai.llms.base import BaseOpenAI
from langgraph.pregel import Pregel

from agentspec.adapters import langchain as adapter
from agentspec.adapters.langchain import AgentSpecLLM, ChatAgentSpec, instrument
from agentspec.errors import AdapterError, StageError
from tests.adapters.with_langchain.asking import Stages

TAGGED: Any = {"tags": ["agentspec:a"]}


def replaced() -> list[Any]:
    return [vars(owner) for owner in (BaseChatOpenAI, BaseOpenAI)]


@pytest.fixture
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process that has made no model of ours."""
    monkeypatch.setattr(adapter.LISTENING, "_users", [])
    monkeypatch.setattr(adapter.LISTENING, "_undoing", ExitStack())
    adapter.listen_for_good.cache_clear()


def traces() -> list[Any]:
    """Return every object that an instrumentation changes, by identity."""
    owners = (BaseChatOpenAI, BaseOpenAI, AsyncCallbackManager, CallbackManager, Pregel)
    changed = [value for owner in owners for _, value in sorted(vars(owner).items(), key=lambda one: one[0])]
    handlers = [one for manager in (CallbackManager, AsyncCallbackManager) for one in handlers_of(manager)]
    return [context._configure_hooks, *context._configure_hooks, *changed, *handlers]


def handlers_of(manager: Any) -> list[Any]:
    return list(manager.configure().handlers)


@pytest.mark.usefixtures("nobody_listens", "engine")
def test_nothing_is_left_behind(fields: dict[str, Any]) -> None:
    before = traces()
    undoing = [instrument(workflow=name) for name in "abc"]
    assert adapter.LISTENER in handlers_of(CallbackManager)
    create_agent(ChatOpenAI(**fields), name="writer").invoke({"messages": [("user", "hi")]})
    other = contextvars.Context()
    for undo in (undoing[1], undoing[0], undoing[0]):
        other.run(undo)
    thread = threading.Thread(target=undoing[2])
    thread.start()
    thread.join()
    assert all(one is other for one, other in zip(traces(), before, strict=True))
    assert adapter._CALLER.get() is None
    assert adapter.LISTENER._runs == {}


@pytest.mark.usefixtures("nobody_listens")
def test_nothing_is_left_behind_of_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = BaseOpenAI._astream
    with monkeypatch.context() as patch:
        patch.delattr(BaseOpenAI, "_astream")
        before = traces()
        with pytest.raises(AdapterError, match="_astream"):
            instrument()
        assert all(one is other for one, other in zip(traces(), before, strict=True))
    assert BaseOpenAI._astream is original


@pytest.mark.usefixtures("nobody_listens")
def test_hooks_of_others_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_configure_hooks", hooks := list(context._configure_hooks))
    monkeypatch.setattr(adapter, "_configure_hooks", hooks)
    before = list(hooks)
    undo = instrument()
    theirs: Any = contextvars.ContextVar("theirs", default=None)
    context.register_configure_hook(theirs, inheritable=True)
    undo()
    assert hooks[:-1] == before
    assert hooks[-1][0] is theirs


@pytest.mark.usefixtures("nobody_listens")
def test_models_of_ours_are_listened_for_afterwards(
    fields: dict[str, Any], stages: Stages, engine: Any
) -> None:
    undo = instrument()
    model = ChatAgentSpec(**fields)
    undo()
    model.invoke("hi", TAGGED)
    assert stages() == ["a"]


def test_it_can_be_undone(fields: dict[str, Any], stages: Stages, engine: Any) -> None:
    before = [dict(names) for names in replaced()]
    model = ChatOpenAI(**fields)
    model.invoke("hi", TAGGED)
    undo = instrument(workflow="flow")
    model.invoke("hi", TAGGED)
    undo()
    model.invoke("hi", TAGGED)
    undo()
    assert stages() == ["default", "flow/a", "default"]
    assert [dict(names) for names in replaced()] == before


def test_the_last_one_holds(fields: dict[str, Any], stages: Stages, engine: Any) -> None:
    before = [dict(names) for names in replaced()]
    model = ChatOpenAI(**fields)
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    model.invoke("hi", TAGGED)
    last()
    model.invoke("hi", TAGGED)
    assert stages() == ["last/a", "default"]
    assert [dict(names) for names in replaced()] == before


def test_one_that_was_wrapped_by_others_says_nothing_more(
    fields: dict[str, Any], stages: Stages, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ChatOpenAI(**fields)
    undo = instrument(workflow="flow")
    ours = BaseChatOpenAI._get_request_payload
    with monkeypatch.context() as patch:
        patch.setattr(BaseChatOpenAI, "_get_request_payload", lambda *args, **kwargs: ours(*args, **kwargs))
        undo()
        model.invoke("hi", TAGGED)
        undo = instrument(workflow="next")
        model.invoke("hi", TAGGED)
        undo()
    BaseChatOpenAI._get_request_payload = ours.__wrapped__
    assert stages() == ["default", "next/a"]


def test_our_own_models_stay_as_they_are(
    fields: dict[str, Any], stages: Stages, llm: Callable[..., AgentSpecLLM]
) -> None:
    undo = instrument(workflow="flow")
    ChatAgentSpec(**fields, stage="own").invoke("hi")
    llm(stage="own").invoke("hi")
    undo()
    assert stages() == ["own", "own"]


def test_a_call_with_a_model_of_its_own(fields: dict[str, Any], stages: Stages, engine: Any) -> None:
    undo = instrument()
    ChatOpenAI(**fields).invoke("hi", TAGGED, model="scripted")
    OpenAI(**fields).invoke("hi", TAGGED, model="scripted")
    undo()
    assert stages() == ["a", "a"]


async def test_completions(fields: dict[str, Any], stages: Stages, engine: Any) -> None:
    model = OpenAI(**fields)
    undo = instrument()
    model.invoke("hi", TAGGED)
    await model.ainvoke("hi", TAGGED)
    assert list(model.stream("hi", TAGGED))
    assert [text async for text in model.astream("hi", TAGGED)]
    undo()
    model.invoke("hi", TAGGED)
    model.client._client.close()
    await model.async_client._client.close()
    assert stages() == ["a"] * 4 + ["default"]


async def test_others_are_told_of_completions(fields: dict[str, Any], llm: Callable[..., Any]) -> None:
    class Told(BaseCallbackHandler):
        def __init__(self) -> None:
            self.events: list[str] = []

        def on_llm_start(self, *args: Any, **kwargs: Any) -> None:
            self.events.append("start")

    told = Told()
    await llm().ainvoke("hi", {"callbacks": [told]})
    assert told.events == ["start"]


def test_a_bad_workflow_is_refused_before_anything_is_changed() -> None:
    before = [dict(names) for names in replaced()]
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert [dict(names) for names in replaced()] == before
