"""Flow control of one connection to a client."""

from __future__ import annotations

import asyncio


class FlowControl:
    """Pauses reading from a client, and reports when the client does not keep up with the response."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_reading = True
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def is_full(self) -> bool:
        """True if the write buffer is above its high-water mark."""
        return not self._may_write.is_set()

    async def drain(self) -> None:
        """Wait until the write buffer is below its low-water mark, or the client has disconnected."""
        await self._may_write.wait()

    def pause_writing(self) -> None:
        """Let ``drain`` wait."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let ``drain`` return."""
        self._may_write.set()

    def pause_reading(self) -> None:
        """Leave the client's next bytes in the kernel, which then slows down the client."""
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
