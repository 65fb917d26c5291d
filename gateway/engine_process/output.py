"""Forwards an engine's output to our log, line by line, and keeps the last lines."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque

CHUNK_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 16
NUM_LAST_LINES = 15
# vLLM writes "(EngineCore pid=7) INFO 11-22 03:09:53 [core.py:12] ready", uvicorn "INFO:     ready"
LINE = re.compile(
    r"(?P<process>\([^()]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?P<text>.*)"
)

logger = logging.getLogger("agentspec.engine")


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
        logger.log(level, "engine: %s", text)
