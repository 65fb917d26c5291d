"""One run of an engine's command, in a process group that is removed completely afterwards.

Its output is forwarded to our log, line by line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 16
NUM_LAST_LINES = 15
# vLLM writes "(EngineCore pid=7) INFO 11-22 03:09:53 [core.py:12] ready", uvicorn "INFO:     ready"
LINE = re.compile(
    r"(?P<process>\([^()]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?P<text>.*)"
)
LAST_WORDS_S = 2.0

logger = logging.getLogger("agentspec.gateway")
engine_logger = logging.getLogger("agentspec.engine")


class EngineOutput:
    """The output of one process, logged at the levels that its lines name; a line without a level is info."""

    def __init__(self) -> None:
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)

    @property
    def last_line(self) -> str:
        """The last line of output, or an empty string."""
        return self.last_lines[-1] if self.last_lines else ""

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Log all lines of ``stream``."""
        pending = b""
        while chunk := await stream.read(CHUNK_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            if len(pending) > LONGEST_LINE_BYTES:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._pass_on(line)
        self._pass_on(pending)

    def _pass_on(self, raw: bytes) -> None:
        # a progress bar overwrites itself: keep its last state
        line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
        if not line:
            return
        found = LINE.match(line)
        level = logging.getLevelNamesMapping()[found["level"]] if found else logging.INFO
        text = (found["process"] or "") + found["text"] if found else line
        self.last_lines.append(text)
        engine_logger.log(level, "engine: %s", text)


WATCHDOG = Path(__file__).with_name("watchdog.py")


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command that starts an engine.

    Attributes:
        argv: program and arguments.
        environment: added to ours; may hold secrets, which a command line must not.
        stop_timeout_s: seconds between the request to end (SIGTERM) and the kill.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    stop_timeout_s: float = 30.0


class EngineSubprocess:
    """The running command: ``async with EngineSubprocess(command) as child``.

    At the end of the block the command is asked to end, then its process group is killed. The parent
    watchdog does the same if this process dies first. Only processes that leave the group survive.
    """

    def __init__(self, command: EngineCommand) -> None:
        self.output = EngineOutput()
        self._command = command

    async def __aenter__(self) -> EngineSubprocess:
        watchdog_end, self._our_end = os.pipe()  # only we hold it: no other process of ours inherits it
        output, child_end = os.pipe()
        try:
            # no asyncio pipes: with them wait() waits for every process that holds them, grandchildren too
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(WATCHDOG), str(self._command.stop_timeout_s)),
                *self._command.argv,
                stdin=watchdog_end,
                stdout=child_end,
                stderr=child_end,
                env={**os.environ, **self._command.environment},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._our_end)
            os.close(output)
            raise
        finally:
            os.close(watchdog_end)
            os.close(child_end)
        self._ended = asyncio.create_task(self._process.wait())
        self._reading = asyncio.create_task(self._read(output))
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._our_end)
        try:
            if not await self.ends_within(self._command.stop_timeout_s + LAST_WORDS_S):
                logger.warning("the engine did not end in %.0f s and is killed", self._command.stop_timeout_s)
        finally:
            with suppress(ProcessLookupError):  # no process of the group is left
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.wait({self._ended})
            await asyncio.wait({self._reading}, timeout=LAST_WORDS_S)
            self._reading.cancel()

    async def ends_within(self, timeout_s: float) -> bool:
        """Return True as soon as the command has ended, False if it still runs after ``timeout_s``."""
        ended, _ = await asyncio.wait({self._ended}, timeout=timeout_s)
        return bool(ended)

    @property
    def ending(self) -> str:
        """The way in which it ended, in words."""
        status = self._ended.result()
        number = -status if status < 0 else status - 128
        if number > 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(number).name}"
        return f"ended with status {status}"

    async def _read(self, descriptor: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
        )
        try:
            await self.output.read(reader)
        finally:
            transport.close()
