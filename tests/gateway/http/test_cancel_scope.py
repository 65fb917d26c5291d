from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.http.cancellation import CancelScope, ClientGoneError, GracefulShutdown
from agentspec.gateway.http.context import RequestHeaders
from agentspec.gateway.http.response_writer import AsgiResponseWriter


class Exchange:
    """A response writer of our own server, which reports a disconnect."""

    reports_disconnect = True
    on_disconnect: Any = None


async def never() -> None:
    await asyncio.Event().wait()


async def discard(message: Message) -> None:
    pass


async def test_work_ends_by_itself() -> None:
    writer: Any = Exchange()
    cancel_scope = CancelScope()

    async def work() -> None:
        cancel_scope.cancel_on_disconnect(writer, never)
        assert writer.on_disconnect is not None

    await cancel_scope.run(work())
    assert writer.on_disconnect is None
    cancel_scope.cancel(ClientGoneError())  # too late, no effect
    await asyncio.sleep(0)


async def test_the_works_own_errors_come_through() -> None:
    for error in (ValueError("mine"), TimeoutError("mine")):

        async def work(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match="mine"):
            await CancelScope().run(work())


@pytest.mark.parametrize("tells", [True, False])
async def test_work_is_let_go_when_the_client_leaves(tells: bool) -> None:
    writer: Any = Exchange() if tells else AsgiResponseWriter(discard)
    cancel_scope, released, gone = CancelScope(), [], asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        cancel_scope.cancel_on_disconnect(writer, receive)
        asyncio.get_running_loop().call_soon(writer.on_disconnect if tells else gone.set)
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            released.append(True)

    with pytest.raises(ClientGoneError):
        await cancel_scope.run(work())
    assert released == [True]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancelled_from_outside_is_cancelled() -> None:
    task = asyncio.create_task(CancelScope().run(never()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_end_of_the_grace_period_cuts_what_is_held_and_what_comes_later() -> None:
    shutdown = GracefulShutdown()
    held = [asyncio.create_task(shutdown.run(never(), CancelScope())) for _ in range(3)]
    await asyncio.sleep(0)
    shutdown.expire()
    for task in held:
        with pytest.raises(ShuttingDownError):
            await task
    with pytest.raises(ShuttingDownError):
        await shutdown.run(never(), CancelScope())


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
