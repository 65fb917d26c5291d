"""Work on a request only as long as somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client closed the connection before the answer was complete."""


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run ``work`` to its end, or cancel it as soon as the client leaves.

    The request's body must have been read. Raises ClientGoneError if the client left.
    """
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        if not await ended_before(gone, work):
            raise ClientGoneError
    finally:
        await _cancel(gone)


async def ended_before(end: asyncio.Future[None], work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work`` and return True, or cancel it as soon as ``end`` is done and return False.

    Cancelled work is awaited: whatever it holds (an engine slot, an upstream connection) is released
    before this returns. ``end`` may be shared; it is never cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()  # raises what the work raised
        return True
    finally:
        await _cancel(task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen
