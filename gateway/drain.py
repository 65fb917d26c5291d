"""The end of a server's life: requests under way get some time, then they are broken off."""

from __future__ import annotations

import asyncio


class Drain:
    """A grace period that starts with :meth:`begin`. Used from the event loop only."""

    def __init__(self) -> None:
        self._expiry: asyncio.Future[None] | None = None

    @property
    def expiry(self) -> asyncio.Future[None]:
        """Done once the grace period is over. Shared by all requests: wait for it, never cancel it."""
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().create_future()
        return self._expiry

    def begin(self, grace_s: float) -> None:
        """Start the grace period."""
        asyncio.get_running_loop().call_later(grace_s, self.expire)

    def expire(self) -> None:
        """End the grace period now."""
        if not self.expiry.done():
            self.expiry.set_result(None)
