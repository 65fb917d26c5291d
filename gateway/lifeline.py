"""Work on a request only as long as somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from agentspec.gateway.drain import Drain
from agentspec.gateway.errors import ShuttingDownError


class ClientGoneError(Exception):
    """The client closed the connection before the answer was complete."""


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive, drain: Drain) -> None:
    """Run ``work`` to its end, or cancel it as soon as the client leaves or the drain expires.

    The work is cancelled and awaited, so whatever it holds (an engine slot, an upstream connection)
    is released before this returns. The request's body must have been read.

    Raises:
        ClientGoneError: the client left.
        ShuttingDownError: the grace period of a shutdown is over.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone, drain.expiry}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        await _cancel(task)
        if gone.done():
            raise ClientGoneError
        raise ShuttingDownError("the server is shutting down")
    finally:
        await _cancel(task)
        await _cancel(gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen
