"""Flow control of one connection: when to read from its client, and when to write."""

from __future__ import annotations

import asyncio


class FlowControl:
    """Pauses reading on request, and records whether the transport's write buffer is full.

    Attributes:
        is_full: True from the transport's ``pause_writing`` to its ``resume_writing``.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_reading = True
        self._is_held = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_full = False

    def pause_reading(self) -> None:
        """Stop reading, so that TCP stops the client. A second call changes nothing."""
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless reading is held. A second call changes nothing."""
        if not self._is_reading and not self._is_held:
            self._is_reading = True
            self._transport.resume_reading()

    def hold_reading(self) -> None:
        """Stop reading until :meth:`release_reading`."""
        self._is_held = True
        self.pause_reading()

    def release_reading(self) -> None:
        """Read again after :meth:`hold_reading`."""
        self._is_held = False
        self.resume_reading()

    def pause_writing(self) -> None:
        """Handle a write buffer above its high-water mark."""
        self.is_full = True
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Handle a write buffer below its low-water mark, or the end of the connection."""
        self.is_full = False
        self._may_write.set()

    async def drain(self) -> None:
        """Wait while the write buffer is full."""
        await self._may_write.wait()
