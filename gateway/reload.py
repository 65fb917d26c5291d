"""A configuration that may change while the gateway runs: on SIGHUP, or when its file does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from agentspec.errors import AgentSpecError

POLL_S = 1.0

logger = logging.getLogger("agentspec.gateway")


class Reload:
    """Calls ``apply`` when the file at ``path`` has changed. What it raises is logged, and that is all.

    Args:
        apply: reads the file and puts it into force; in the event loop.
    """

    def __init__(self, path: Path, apply: Callable[[], None]) -> None:
        self._path = path
        self._apply = apply
        self._asked = asyncio.Event()
        self._seen = self._stamp()

    def ask(self) -> None:
        """Read it again, changed or not. From the event loop."""
        self._asked.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._asked.wait()
            except TimeoutError:
                if self._stamp() == self._seen:
                    continue
            self._asked.clear()
            self._seen = self._stamp()
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
        """What changes with the file, also when it is replaced by another; None if there is none now."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
