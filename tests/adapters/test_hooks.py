from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import copy_context
from typing import Any

import pytest
from openai._base_client import BaseClient

from agentspec.adapters.caller import CALLER, Caller, calling
from agentspec.adapters.hooks import below, hinted, kept_for, note_caller
from agentspec.adapters.instrumentation import Instrumentation, Undo
from agentspec.adapters.openai import CLIENT
from agentspec.errors import AdapterError, StageError

ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


class Agent:
    """A framework's agent, with every kind of method."""

    name = "writer"

    def ask(self) -> Any:
        return CALLER.get()

    async def wait(self) -> Any:
        return CALLER.get()

    async def follow(self) -> AsyncIterator[Any]:
        yield CALLER.get()
        yield CALLER.get()


def caller_of(agent: Agent) -> Caller:
    return hinted(agent.name)


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (("writer",), ("writer",)),
        (("Head of Sales / Europe\n", ""), ("Head of Sales", "Europe")),
        ((f"writer_{ID}", ID), ("writer",)),
        ((), ()),
    ],
)
def test_names_become_a_role(names: tuple[str, ...], role: tuple[str, ...]) -> None:
    assert hinted(*names) == Caller(role=role)


def test_what_is_around_stays() -> None:
    with calling(Caller(named="mine", role=("team",), session="run-1")):
        assert hinted("writer", session="run-2") == Caller("mine", ("writer",), "run-1")
        assert hinted(ID) == Caller("mine", ("team",), "run-1")
        assert below("writer") == Caller("mine", ("team", "writer"), "run-1")


@pytest.mark.parametrize("session", ["", "s" * 256, "é" * 43, "\ud800"])
def test_a_session_that_fits_no_header_is_none(session: str) -> None:
    assert hinted("writer", session=session) == Caller(role=("writer",))


async def test_every_kind_of_method() -> None:
    undoing = [note_caller(Agent, name, caller_of) for name in ("ask", "wait", "follow")]
    agent, expected = Agent(), Caller(role=("writer",))
    assert agent.ask() == await agent.wait() == expected
    parts = agent.follow()
    async for caller in parts:
        assert caller == expected
        assert CALLER.get() is None
    for undo in undoing:
        undo()
    assert agent.ask() is None


async def test_a_coroutine_is_closed_from_another_context() -> None:
    async def wait(agent: Agent) -> None:
        with calling(caller_of(agent)):
            await asyncio.Event().wait()

    waiting = wait(Agent())
    copy_context().run(waiting.send, None)
    waiting.close()
    assert CALLER.get() is None


async def test_streams_are_closed_with_what_reads_them() -> None:
    closed: list[str] = []

    def plain() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append("plain")

    async def asynchronous() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append("asynchronous")

    parts, later = kept_for(Caller(), plain()), kept_for(Caller(), asynchronous())
    assert next(parts) == await anext(later) == 1
    parts.close()
    await later.aclose()
    assert closed == ["plain", "asynchronous"]


def test_hooks_that_cannot_be_put_in_place_change_nothing() -> None:
    def put() -> Iterator[Undo]:
        yield note_caller(Agent, "ask", caller_of)
        yield note_caller(Agent, "no such method", caller_of)

    before, tagging = dict(vars(Agent)), vars(BaseClient)["_build_request"]
    with pytest.raises(AdapterError, match=r"Agent has no 'no such method'"):
        Instrumentation(put, beneath=CLIENT).instrument()
    with pytest.raises(StageError):
        Instrumentation(put, beneath=CLIENT).instrument(workflow="a//b")
    assert dict(vars(Agent)) == before
    assert vars(BaseClient)["_build_request"] is tagging


def test_they_are_there_once() -> None:
    hooks = Instrumentation(lambda: iter([note_caller(Agent, "ask", caller_of)]), beneath=CLIENT)
    original = vars(Agent)["ask"]
    first = hooks.instrument()
    replaced = vars(Agent)["ask"]
    last = hooks.instrument()
    assert vars(Agent)["ask"] is replaced is not original
    first()
    first()
    assert vars(Agent)["ask"] is replaced
    last()
    assert vars(Agent)["ask"] is original
