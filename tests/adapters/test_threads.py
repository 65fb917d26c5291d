"""Threads: calls that pools and plain threads make while a block with a stage is open."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from agentspec.adapters.block import OpenBlocks
from agentspec.adapters.openai import instrument, stage
from tests.adapters.support.strangers import Server, serving_every_name

ASKED: Any = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
TAGS = {"x-agentspec-stage": "flow/plan", "x-agentspec-session": "run-1"}
NO_STAGE = {"x-agentspec-workflow": "flow"}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        undo = instrument(workflow="flow")
        yield server
        undo()


@pytest.fixture
def ask(server: Server) -> Iterator[Callable[..., None]]:
    with openai.OpenAI(
        base_url=f"http://gateway:{server.server_port}/v1", api_key="none", max_retries=0
    ) as client:
        yield lambda *_: client.chat.completions.create(**ASKED)


def by_submit(ask: Callable[..., None], pool: ThreadPoolExecutor) -> None:
    for future in [pool.submit(ask) for _ in range(4)]:
        future.result()


def by_map(ask: Callable[..., None], pool: ThreadPoolExecutor) -> None:
    list(pool.map(ask, range(4)))


def by_loop(ask: Callable[..., None], pool: ThreadPoolExecutor) -> None:
    async def asking() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, ask) for _ in range(4)))

    asyncio.run(asking())


@pytest.mark.parametrize("by", [by_submit, by_map, by_loop])
@pytest.mark.parametrize("is_made_before", [True, False])
def test_a_pool_keeps_the_stage(
    server: Server, ask: Callable[..., None], by: Callable[..., None], is_made_before: bool
) -> None:
    pools = [ThreadPoolExecutor(2)] if is_made_before else []
    if pools:
        pools[0].submit(int).result()  # its thread has started without a stage
    with stage("plan", session="run-1"):
        pool = pools[0] if pools else ThreadPoolExecutor(2)
        by(ask, pool)
        with stage("write"):
            pool.submit(ask).result()
    pool.submit(ask).result()
    pool.shutdown()
    assert [tags for _, tags in server.tags()] == [
        *[TAGS] * 4,
        {**TAGS, "x-agentspec-stage": "flow/write"},
        NO_STAGE,
    ]


def test_a_function_that_raises_in_a_pool(server: Server) -> None:
    with stage("plan"), ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(int, "a").exception(), ValueError)
        assert pool.submit(lambda *, function: function, function=1).result() == 1


def test_without_an_instrumentation_the_pool_is_pythons() -> None:
    assert not hasattr(ThreadPoolExecutor.submit, "__wrapped__")


def test_a_plain_thread_warns_once(
    server: Server,
    ask: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocks = OpenBlocks()
    monkeypatch.setattr("agentspec.adapters.block.OPEN_BLOCKS", blocks)
    monkeypatch.setattr("agentspec.adapters.client_requests.OPEN_BLOCKS", blocks)

    def in_a_thread() -> list[str]:
        caplog.clear()
        thread = threading.Thread(target=ask, name="asker")
        thread.start()
        thread.join()
        return [record.message for record in caplog.records if record.levelno == logging.WARNING]

    assert in_a_thread() == []  # no block is open
    with stage("plan"):
        ask()
        [warned] = in_a_thread()
        assert warned.startswith("a call in the thread 'asker' has no stage, while stage(...) is open")
        assert in_a_thread() == []
    assert [tags for _, tags in server.tags()] == [
        NO_STAGE,
        {"x-agentspec-stage": "flow/plan"},
        NO_STAGE,
        NO_STAGE,
    ]
