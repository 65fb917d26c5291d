"""Reloading of the configuration while the gateway runs: on SIGHUP, or when the file changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from agentspec.errors import AgentSpecError

POLL_S = 1.0

logger = logging.getLogger("agentspec.gateway")


class Reload:
    """Calls ``apply`` when the file at ``path`` has changed, and logs the errors that it raises.

    A file that is being written differs from poll to poll. It is read once two polls found it the same.

    Args:
        apply: reads the file and puts it into force; runs in the event loop.
    """

    def __init__(self, path: Path, apply: Callable[[], None]) -> None:
        self._path = path
        self._apply = apply
        self._asked = asyncio.Event()
        self._read_stamp = self._last_stamp = self._stamp()

    def ask(self) -> None:
        """Request a reload even if the file has not changed. Call from the event loop."""
        self._asked.set()

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._asked.wait()
            except TimeoutError:
                if not self.has_changed():
                    continue
            self._asked.clear()
            self.read()

    def has_changed(self) -> bool:
        """Return True if the file differs from the one last read but not from the previous poll."""
        before, self._last_stamp = self._last_stamp, self._stamp()
        return self._last_stamp == before != self._read_stamp

    def read(self) -> None:
        """Put the file into force as it is now, or log the error."""
        self._read_stamp = self._last_stamp = self._stamp()
        self._try()

    def _try(self) -> None:
        try:
            self._apply()
        except AgentSpecError as error:
            logger.error("the configuration stays as it was: %s", error)
        except Exception:
            logger.exception("the configuration stays as it was")
        else:
            logger.info("the configuration was read again from %s", self._path)

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return a value that changes when the file is written or replaced; None if there is no file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
