"""The end of a server's life: requests under way get some time, then they are broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.lifeline import ClientGoneError, Lifeline, ended_before


class Drain:
    """A grace period that starts with :meth:`begin`. Used from the event loop only."""

    def __init__(self) -> None:
        self._begin: asyncio.Future[None] | None = None
        self._expiry: asyncio.Future[None] | None = None

    async def run(self, work: Coroutine[Any, Any, None], lifeline: Lifeline) -> None:
        """Run ``work`` to its end.

        Raises:
            ClientGoneError: its client has left before.
            ShuttingDownError: the grace period is over before.
        """
        try:
            if await ended_before((self._over, lifeline.left), work):
                return
        finally:
            lifeline.let_go()
        if lifeline.left.done():
            raise ClientGoneError
        raise ShuttingDownError("the server is shutting down")

    def begin(self, grace_s: float) -> None:
        """Start the grace period."""
        asyncio.get_running_loop().call_later(grace_s, self.expire)
        if not self.begun.done():
            self.begun.set_result(None)

    def expire(self) -> None:
        """End the grace period now."""
        if not self._over.done():
            self._over.set_result(None)

    @property
    def begun(self) -> asyncio.Future[None]:
        """Done once the grace period has started: what would go on for ever ends now. Not to be cancelled."""
        if self._begin is None:
            self._begin = asyncio.get_running_loop().create_future()
        return self._begin

    @property
    def _over(self) -> asyncio.Future[None]:
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().create_future()
        return self._expiry
