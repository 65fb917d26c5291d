"""The clients: measurements, comparison of bytes, and disconnects; and the due times of beats."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import cast

import pytest

from benchmarks.gateway import answers
from benchmarks.gateway.agent_bodies import body
from benchmarks.gateway.client import Connection, Exchange, Pool, Request, Target
from benchmarks.gateway.plan import HANG_MS, Plan
from benchmarks.vllm.server import Server

LATE_S = 600.0


def request(target: Target, plan: Plan, *, is_stream: bool = True) -> Request:
    asked = body(answers.CHAT, plan, is_stream=is_stream, num_bytes=0)
    expected = answers.body(answers.CHAT, plan, is_stream)
    return Request(target.head(answers.CHAT, len(asked)) + asked, expected)


async def ask(stub: Server, plan: Plan, *, is_stream: bool = True, **changed: object) -> Exchange:
    target = Target(stub.url, {"authorization": "Bearer some"})
    pool = Pool(target)
    try:
        return await pool.ask(replace(request(target, plan, is_stream=is_stream), **changed))
    finally:
        pool.close()


async def test_an_answer_and_its_times(stub: Server) -> None:
    begin_ns = time.monotonic_ns()
    exchange = await ask(stub, Plan(delay_ms=10, num_chunks=4, gap_ms=10))
    assert exchange.is_good
    assert exchange.status == 200
    assert begin_ns <= exchange.due_ns < exchange.first_ns < exchange.last_ns < time.monotonic_ns()
    assert 0 < exchange.longest_silence_ns <= exchange.last_ns - exchange.first_ns
    assert exchange.num_bytes == len(answers.body(answers.CHAT, Plan(num_chunks=4), True))


async def test_connections_are_used_again_once_they_are_free(stub: Server) -> None:
    target = Target(stub.url)
    pool = Pool(target)
    for is_stream in (True, False, True):
        assert (await pool.ask(request(target, Plan(num_chunks=2), is_stream=is_stream))).is_good
    assert pool.num_opened == 1
    slow = request(target, Plan(delay_ms=30))
    assert all(one.is_good for one in await asyncio.gather(pool.ask(slow), pool.ask(slow)))
    assert pool.num_opened == 2
    pool.close()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_changed_byte_shows(stub: Server, is_stream: bool) -> None:
    whole = answers.body(answers.CHAT, Plan(), is_stream)
    changed = await ask(stub, Plan(), is_stream=is_stream, expected=whole.replace(b"joins", b"JOINS", 1))
    assert (changed.is_changed, changed.is_complete, changed.is_good) == (True, True, False)
    assert (await ask(stub, Plan(), is_stream=is_stream, expected=whole + b"!")).is_changed
    longer = await ask(stub, Plan(), is_stream=is_stream, expected=whole[:-5])
    assert (longer.is_changed, longer.rest) == (True, whole[-5:])


async def test_an_error_is_an_answer_too(stub: Server) -> None:
    exchange = await ask(stub, Plan(status=503))
    assert (exchange.status, exchange.is_complete, exchange.is_changed) == (503, True, False)
    assert not exchange.is_good


async def test_an_answer_that_breaks_off(stub: Server) -> None:
    exchange = await ask(stub, Plan(num_chunks=9, breaks_after=2))
    assert (exchange.status, exchange.is_complete, exchange.is_changed) == (200, False, False)


async def test_leaving_before_the_answer(stub: Server) -> None:
    exchange = await ask(stub, Plan(delay_ms=HANG_MS), leaves_after_s=0.02)
    assert exchange.left_ns - exchange.due_ns >= 19e6
    assert (exchange.num_parts, exchange.status, exchange.is_complete) == (0, 0, False)


@pytest.mark.parametrize("gap_ms", [0, 10])
async def test_leaving_in_the_middle(stub: Server, gap_ms: int) -> None:
    """Leave even if more parts arrived with the last awaited one."""
    exchange = await ask(stub, Plan(num_chunks=500, gap_ms=gap_ms), leaves_after_parts=3)
    assert exchange.left_ns >= exchange.last_ns
    assert (exchange.num_parts, exchange.is_complete, exchange.is_changed) == (3, False, False)


class Sent:
    """A transport that discards all data."""

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


async def test_leaving_when_the_rest_is_there_already() -> None:
    """Leave when one read has the whole answer."""
    pool = Pool(Target("http://127.0.0.1:1"))
    connection = Connection(pool)
    connection.connection_made(cast(asyncio.Transport, Sent()))
    answered = connection.ask(Request(b"", expected=b"abcd", leaves_after_parts=1), 0)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.data_received(head + b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")
    exchange = await answered
    assert (exchange.num_parts, exchange.is_complete, exchange.is_changed) == (1, False, False)
