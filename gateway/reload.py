"""Reloading of the configuration while the gateway runs: on SIGHUP, or when the file changes.

A version of the file is put into force if it is good. A bad version changes nothing, with one exception: what
it takes away from clients is taken away, see :meth:`Reload.read`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import AgentSpecError, ConfigError
from agentspec.gateway.yaml_limits import read_bounded

POLL_S = 0.25

logger = logging.getLogger("agentspec.gateway")

Stamp = tuple[int, int, int]
Step = Callable[[bytes], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Version:
    """The file at one moment.

    Attributes:
        stamp: changes when the file is written or replaced; None if there is no file.
        content: its bytes, or the reason for which it can't be read.
    """

    stamp: Stamp | None
    content: bytes | ConfigError


class Reload:
    """Puts versions of the file at ``path`` into force, and logs the errors of bad ones.

    A file that is being written differs from look to look. Its content is kept at each look, and is put into
    force once two looks found it the same. SIGHUP puts the content of its moment into force.

    Args:
        read: parses a file's content, in a thread: that takes long, and streams go on. Returns what puts the
            settings into force, in the event loop.
        salvage: the same for content that ``read`` or its result refused; see RunningSettings.
    """

    def __init__(
        self,
        path: Path,
        read: Step,
        salvage: Step,
    ) -> None:
        self._path = path
        self._read = read
        self._salvage = salvage
        self._asked: asyncio.Queue[Version] = asyncio.Queue()
        self._last = self.version()
        self._read_stamp = self._last.stamp

    def ask(self, version: Version) -> None:
        """Request that ``version`` is read, even if it has not changed. Call from the event loop."""
        self._asked.put_nowait(version)

    def version(self) -> Version:
        """Return the file as it is now."""
        stamp = self._stamp()
        try:
            if stamp is not None and not self._path.is_file():  # a pipe would not end
                raise ConfigError(f"{str(self._path)!r} is no regular file")
            return Version(stamp, read_bounded(self._path))
        except ConfigError as error:
            return Version(stamp, error)

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    version: Version | None = await self._asked.get()
            except TimeoutError:
                version = self.look()
            if version is not None:
                await self.read(version)

    def look(self) -> Version | None:
        """Look at the file. Return its version if it is new, and the same as at the previous look."""
        stamp = self._stamp()
        if stamp != self._last.stamp:
            self._last = self.version()
            return None
        return None if stamp == self._read_stamp else self._last

    async def read(self, version: Version) -> None:
        """Put a version into force. If it is bad, log its errors, and take away what it takes away."""
        self._last, self._read_stamp = version, version.stamp
        if isinstance(version.content, ConfigError):
            _log(version.content)
            return
        if await self._try(self._read, version.content):
            logger.info("the configuration was read again from %s", self._path)
        else:
            await self._try(self._salvage, version.content)

    async def _try(self, step: Step, content: bytes) -> bool:
        try:
            (await asyncio.to_thread(step, content))()
        except AgentSpecError as error:
            _log(error)
        except Exception:
            logger.exception("the configuration stays as it was")
        else:
            return True
        return False

    def _stamp(self) -> Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _log(error: AgentSpecError) -> None:
    logger.error("the configuration stays as it was: %s", error)
