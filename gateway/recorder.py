"""Calls as they were asked and answered, in a file that can be replayed (docs/replay-engine.md).

Off the stream path: the parts of an answer are kept as they pass, and put together and written by a thread.
What is too long, or comes while too much waits, is left out and counted. The file holds prompts and answers
of all tenants; it is readable by its owner alone.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, RequestError
from agentspec.gateway.call import Call
from agentspec.gateway.recorded_answer import recorded_request, recorded_response
from agentspec.gateway.reply import Reply

MAX_ANSWER_BYTES = 16 << 20
MAX_WAITING = 256

logger = logging.getLogger("agentspec.gateway")


class Recorder:
    """Appends finished calls to a file, a line each.

    Raises:
        ConfigError: the file can't be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
        except OSError as error:
            raise ConfigError(f"can't record into {str(path)!r}: {error.strerror}") from None
        self._waiting: queue.Queue[tuple[Call, bytes] | None] = queue.Queue(MAX_WAITING)
        self.num_left_out = 0
        self._thread = threading.Thread(target=self._run, name="agentspec-recorder", daemon=True)
        self._thread.start()

    def listen(self, reply: Reply) -> Parts:
        """Keep the parts of an answer as they pass."""
        parts = Parts()
        reply.listeners.append(parts.add)
        return parts

    def record(self, call: Call, parts: Parts) -> None:
        """A call was answered in full. Never waits."""
        if parts.is_too_long:
            self._leave_out()
            return
        try:
            self._waiting.put_nowait((call, b"".join(parts.kept)))
        except queue.Full:
            self._leave_out()

    def _leave_out(self) -> None:
        self.num_left_out += 1
        logger.warning(
            "a call was not recorded, %d so far: too long, or too many at a time", self.num_left_out
        )

    def _run(self) -> None:
        while (taken := self._waiting.get()) is not None:
            call, answer = taken
            try:
                self._file.write(_line(call, answer))
                self._file.flush()
            except RequestError:  # its message may quote what was said
                logger.debug("%s was not recorded: %s is not for replays", call.request_id, call.path)
            except Exception:
                logger.exception("%s was not recorded", call.request_id)

    def close(self) -> None:
        """Write what waits."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()


class Parts:
    """The bytes of one answer."""

    __slots__ = ("_num_bytes", "kept")

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self._num_bytes = 0

    @property
    def is_too_long(self) -> bool:
        """Not all was kept."""
        return self._num_bytes > MAX_ANSWER_BYTES

    def add(self, part: bytes) -> None:
        """The next ones."""
        self._num_bytes += len(part)
        if not self.is_too_long:
            self.kept.append(part)


def _line(call: Call, answer: bytes) -> bytes:
    tags = call.tags
    record: dict[str, Any] = {
        **recorded_request(call.path, call.body or {}),
        "response": recorded_response(call.path, answer),
        "model": call.model,
        "stage": tags and tags.stage.name,
        "session": tags and tags.session,
    }
    told = {name: value for name, value in record.items() if value is not None}
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
