"""``stage`` and ``untagged`` as blocks and as decorators of every kind of function; calls without a tag."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

import openai
import pytest

from agentspec.adapters.caller import CALLER, Caller, calling
from agentspec.adapters.hooks import hinted
from agentspec.adapters.openai import instrument, stage, untagged
from agentspec.errors import ConfigError
from tests.adapters.support.strangers import Server, serving_every_name

ASKED: Any = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
OMITTED = {"X-AgentSpec-Stage": openai.Omit()}


def now() -> str | None:
    caller = CALLER.get()
    return caller.named if caller else None


@stage("plain")
def plain(*parts: str) -> tuple[str | None, ...]:
    return (now(), *parts)


@stage("coroutine")
async def coroutine() -> list[str | None]:
    before = now()
    await asyncio.sleep(0)
    return [before, now()]


@stage("generator")
def generator() -> Iterator[Any]:
    try:
        sent = yield now()
        yield sent, now()
    except ValueError:
        yield "thrown", now()
    return now()


@stage("async generator")
async def async_generator() -> AsyncIterator[Any]:
    try:
        sent = yield now()
        yield sent, now()
    except ValueError:
        yield "thrown", now()


async def test_every_kind_of_function() -> None:
    assert plain("a") == ("plain", "a")
    assert await coroutine() == ["coroutine"] * 2
    assert list(generator()) == ["generator", (None, "generator")]
    assert [part async for part in async_generator()] == ["async generator", (None, "async generator")]
    kinds = (
        iscoroutinefunction(coroutine),
        isgeneratorfunction(generator),
        isasyncgenfunction(async_generator),
    )
    assert kinds == (True, True, True)
    assert (plain.__name__, now()) == ("plain", None)


async def test_generators_are_sent_and_thrown_into_by_the_stage() -> None:
    parts: Any = generator()
    assert (next(parts), now(), parts.send(7)) == ("generator", None, (7, "generator"))
    with pytest.raises(StopIteration) as end:
        next(parts)
    assert end.value.value == "generator"
    parts = generator()
    next(parts)
    assert parts.throw(ValueError) == ("thrown", "generator")
    parts.close()
    later: Any = async_generator()
    assert (await anext(later), now(), await later.asend(7)) == (
        "async generator",
        None,
        (7, "async generator"),
    )
    await later.aclose()
    later = async_generator()
    await anext(later)
    assert await later.athrow(ValueError) == ("thrown", "async generator")
    await later.aclose()


async def test_what_a_decorator_hides() -> None:
    def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    assert await stage("a")(hiding(coroutine.__wrapped__))() == ["a", "a"]  # type: ignore[attr-defined]
    assert next(stage("a")(hiding(generator.__wrapped__))()) == "a"  # type: ignore[attr-defined]
    hidden = stage("a")(hiding(async_generator.__wrapped__))  # type: ignore[attr-defined]
    parts = hidden()
    assert await anext(parts) == "a"
    await parts.aclose()
    assert stage("a")(partial(wraps(plain)(now)))() == "a"


class Agent:
    @stage("method")
    def ask(self) -> str | None:
        return now()

    @classmethod
    @stage("class")
    def make(cls) -> str | None:
        return now()


def test_methods() -> None:
    assert (Agent().ask(), Agent.make()) == ("method", "class")


@pytest.mark.parametrize("thing", [Agent, Agent(), "text", None, staticmethod(now), classmethod(now)])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigError, match=r"decorates functions|must be below"):
        stage("a")(thing)


@pytest.mark.parametrize("arguments", [(), (None, None), (now,), (coroutine,)])
def test_a_stage_of_nothing_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigError, match="stage"):
        stage(*arguments)


def test_one_block_many_times_and_in_many_threads() -> None:
    block, both_in, seen = stage("shared"), threading.Barrier(2), []

    def enter() -> None:
        with block:
            both_in.wait(30)
            with block:
                seen.append(now())
            both_in.wait(30)
        seen.append(now())

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(map(str, seen)) == ["None", "None", "shared", "shared"]


def test_a_session_without_a_stage() -> None:
    with stage(session="s"):
        assert CALLER.get() == Caller(session="s")
        assert hinted("writer").headers("flow") == {
            "x-agentspec-stage": "flow/writer",
            "x-agentspec-session": "s",
        }
        with stage("a"), stage(session="t"):
            assert CALLER.get() == Caller("a", session="t")


def test_frameworks_inside_add_no_tag() -> None:
    with untagged():
        with calling(hinted("writer", session="s")):
            assert (CALLER.get() or Caller()).headers("flow") == {}
        with stage("a"):
            assert (CALLER.get() or Caller()).headers() == {"x-agentspec-stage": "a"}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        undo = instrument(workflow="flow")
        yield server
        undo()


def test_calls_and_clients_without_a_tag(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://gateway:{server.server_port}/v1"

    def tags_of(client: openai.OpenAI, **options: Any) -> dict[str, str]:
        client.chat.completions.create(**ASKED, **options)
        return server.tags().pop()[1]

    monkeypatch.setenv("AGENTSPEC_RUN_SESSION", "run-1")
    tagged = {"x-agentspec-stage": "flow/a", "x-agentspec-session": "s"}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client, stage("a", session="s"):
        assert tags_of(client) == tagged
        assert tags_of(client, extra_headers=OMITTED) == {}
        without = client.with_options(default_headers=OMITTED)
        assert tags_of(without) == {}
        assert tags_of(without, extra_headers={"x-agentspec-stage": "mine"}) == {
            **tagged,
            "x-agentspec-stage": "mine",
        }
        with untagged():
            assert tags_of(client) == {}
            assert tags_of(client, extra_headers={"x-agentspec-stage": "mine"}) == {
                "x-agentspec-stage": "mine"
            }
        with_session = {"x-agentspec-session": openai.Omit()}
        assert "x-agentspec-session" not in tags_of(client, extra_headers=with_session)
