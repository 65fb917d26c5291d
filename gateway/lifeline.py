"""Work on a request only as long as somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client closed the connection before the answer was complete."""


class Lifeline:
    """What ends the work on one request: its client leaves. Seen from ``watch`` on, until ``let_go``.

    Attributes:
        left: done when the client has left. Not to be cancelled.
    """

    def __init__(self) -> None:
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None

    def watch(self, receive: Receive) -> None:
        """The request's body has been read: what comes now is the client's end."""
        self._watching = asyncio.create_task(_disconnected(receive))
        self._watching.add_done_callback(self._note)

    def let_go(self) -> None:
        """The work is over."""
        if self._watching is not None:
            self._watching.cancel()

    def _note(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and not self.left.done():
            watching.exception()  # marks it as seen
            self.left.set_result(None)


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run ``work`` to its end, or cancel it as soon as the client leaves.

    The request's body must have been read. Raises ClientGoneError if the client left.
    """
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        if not await ended_before([gone], work):
            raise ClientGoneError
    finally:
        await _cancel(gone)


async def ended_before(ends: Iterable[asyncio.Future[None]], work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work`` and return True, or cancel it as soon as one of ``ends`` is done and return False.

    Cancelled work is awaited: whatever it holds (an engine slot, an upstream connection) is released
    before this returns. ``ends`` may be shared; they are never cancelled.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
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
