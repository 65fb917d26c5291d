from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.http.cancellation import ClientGoneError, Lifeline
from agentspec.gateway.http.graceful_shutdown import Drain
from agentspec.gateway.http.request_headers import RequestHeaders
from agentspec.gateway.http.response_writer import EXCHANGE_KEY


class Exchange:
    """As our own server's, which tells when its client leaves."""

    tells_of_leaving = True
    on_lost: Any = None


async def never() -> None:
    await asyncio.Event().wait()


async def test_work_ends_by_itself() -> None:
    exchange, lifeline = Exchange(), Lifeline()
    scope = {EXCHANGE_KEY: exchange}

    async def work() -> None:
        lifeline.watch(scope, never)
        assert exchange.on_lost is not None

    await lifeline.hold(work())
    assert exchange.on_lost is None
    lifeline.cut(ClientGoneError())  # too late, and no harm
    await asyncio.sleep(0)


async def test_the_works_own_errors_come_through() -> None:
    for error in (ValueError("mine"), TimeoutError("mine")):

        async def work(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match="mine"):
            await Lifeline().hold(work())


@pytest.mark.parametrize("tells", [True, False])
async def test_work_is_let_go_when_the_client_leaves(tells: bool) -> None:
    exchange, lifeline, released, gone = Exchange(), Lifeline(), [], asyncio.Event()
    scope = {EXCHANGE_KEY: exchange} if tells else {}

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        lifeline.watch(scope, receive)
        asyncio.get_running_loop().call_soon(exchange.on_lost if tells else gone.set)
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            released.append(True)

    with pytest.raises(ClientGoneError):
        await lifeline.hold(work())
    assert released == [True]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancelled_from_outside_is_cancelled() -> None:
    task = asyncio.create_task(Lifeline().hold(never()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_end_of_the_grace_period_cuts_what_is_held_and_what_comes_later() -> None:
    drain = Drain()
    held = [asyncio.create_task(drain.run(never(), Lifeline())) for _ in range(3)]
    await asyncio.sleep(0)
    drain.expire()
    for task in held:
        with pytest.raises(ShuttingDownError):
            await task
    with pytest.raises(ShuttingDownError):
        await drain.run(never(), Lifeline())


def test_of_several_headers_the_first_counts() -> None:
    headers = RequestHeaders({"type": "http", "headers": [(b"a", b"1"), (b"b", b"caf\xe9"), (b"a", b"2")]})
    assert (headers["A"], headers.get("b"), headers.get("c"), headers.get("c", "-")) == (
        "1",
        "café",
        None,
        "-",
    )
    assert headers.getlist("a") == ["1", "2"]
    assert "A" in headers
    assert "c" not in headers
    with pytest.raises(KeyError):
        headers["c"]
