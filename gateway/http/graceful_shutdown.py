"""Graceful shutdown: calls in flight get a grace period, then they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.http.cancellation import CancelScope


class GracefulShutdown:
    """A grace period that starts with :meth:`begin`. Use from the event loop only."""

    def __init__(self) -> None:
        self._begin: asyncio.Future[None] | None = None
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
        if not self.begun.done():
            self.begun.set_result(None)

    def expire(self) -> None:
        """End the grace period now."""
        self._is_over = True
        for cancel_scope in self._held:
            cancel_scope.cancel(_shutting_down())

    @property
    def begun(self) -> asyncio.Future[None]:
        """Done once the grace period has started, the signal for endless streams to end. Do not cancel it."""
        if self._begin is None:
            self._begin = asyncio.get_running_loop().create_future()
        return self._begin


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down")
