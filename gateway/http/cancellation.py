"""Cancels the work on a request when its client disconnects, or a shutdown's grace period ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive

from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.http.api_response import ResponseWriter


class ClientGoneError(Exception):
    """The client closed the connection before the response was complete."""


class CancelScope:
    """A cancel scope for the work on one request. Cancelled work releases all that it holds.

    The client's disconnect cancels it after ``cancel_on_disconnect``, and ``cancel`` does at any time.
    """

    def __init__(self) -> None:
        self._scope = asyncio.timeout(None)
        self._reason: Exception | None = None
        self._is_held = False
        self._stop_watching: Callable[[], object] | None = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end, in this task. Raises the reason if the scope was cancelled."""
        try:
            async with self._scope:
                self._is_held = True
                await work
        except TimeoutError:
            if self._reason is None:  # raised by the work
                raise
            raise self._reason from None
        finally:
            self._is_held = False
            if self._stop_watching is not None:
                self._stop_watching()

    def cancel_on_disconnect(self, writer: ResponseWriter, receive: Receive) -> None:
        """Cancel when the client disconnects. Call after the request's body was read."""
        if writer.reports_disconnect:  # no waiting task is needed
            writer.on_disconnect = self._on_disconnect
            self._stop_watching = lambda: setattr(writer, "on_disconnect", None)
        else:
            watching = asyncio.create_task(_disconnected(receive))
            watching.add_done_callback(self._note)
            self._stop_watching = watching.cancel

    def cancel(self, reason: Exception) -> None:
        """End the work now; ``run`` raises ``reason``."""
        if self._is_held and self._reason is None:
            self._reason = reason
            self._scope.reschedule(0)

    def _on_disconnect(self) -> None:
        self.cancel(ClientGoneError())

    def _note(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled():
            watching.exception()  # marks it as seen
            self._on_disconnect()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class GracefulShutdown:
    """A grace period that starts with :meth:`begin`. Use from the event loop only.

    Attributes:
        has_begun: the signal for endless streams to end.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._is_over = False
        self._held: set[CancelScope] = set()

    async def run(self, work: Coroutine[Any, Any, None], cancel_scope: CancelScope) -> None:
        """Run ``work`` to its end.

        Raises:
            ClientGoneError: its client disconnected first.
            ShuttingDownError: the grace period ended first.
        """
        if self._is_over:
            work.close()
            raise _shutting_down()
        self._held.add(cancel_scope)
        try:
            await cancel_scope.run(work)
        finally:
            self._held.discard(cancel_scope)

    def begin(self, grace_s: float) -> None:
        """Start the grace period."""
        asyncio.get_running_loop().call_later(grace_s, self.expire)
        self.has_begun = True

    def expire(self) -> None:
        """End the grace period now."""
        self._is_over = True
        for cancel_scope in self._held:
            cancel_scope.cancel(_shutting_down())


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down")
