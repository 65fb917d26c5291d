"""Calls as they were asked and answered, in a file that can be replayed (docs/replay-engine.md).

Off the stream path: the parts of an answer are kept as they pass, and put together and written by a thread.
What is too long, or comes while too much waits, is left out and counted. The file holds prompts and answers
of all tenants; one that is made here is readable by its owner alone.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, RequestError
from agentspec.gateway.call import Call
from agentspec.gateway.http.api_response import Reply
from agentspec.gateway.telemetry.line_file import LineFile
from agentspec.gateway.telemetry.recorded_call import recorded_request, recorded_response

MAX_ANSWER_BYTES = 16 << 20
MAX_WAITING = 256
MAX_WAITING_BYTES = 64 << 20  # one call is taken, whatever its size

logger = logging.getLogger("agentspec.gateway")


class Recorder:
    """Appends finished calls to a file, a line each.

    Raises:
        ConfigError: the file can't be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise ConfigError(f"can't record into {str(path)!r}: {error.strerror}") from None
        self._waiting: queue.Queue[tuple[Call, bytes] | None] = queue.Queue(MAX_WAITING)
        self._num_bytes_taken = 0  # each is counted by one thread alone
        self._num_bytes_done = 0
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
        size = _size(call, parts.num_bytes)
        waiting = self._num_bytes_taken - self._num_bytes_done
        if parts.is_too_long or (waiting and waiting + size > MAX_WAITING_BYTES):
            self._leave_out()
            return
        try:
            self._waiting.put_nowait((call, b"".join(parts.kept)))
            self._num_bytes_taken += size
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
                self._file.append(_line(call, answer))
            except OSError as error:
                logger.error("%s was not recorded: %s", call.request_id, error.strerror)
            except RequestError:  # its message may quote what was said
                logger.debug("%s was not recorded: %s is not for replays", call.request_id, call.path)
            except Exception:
                logger.exception("%s was not recorded", call.request_id)
            self._num_bytes_done += _size(call, len(answer))

    def close(self) -> None:
        """Write what waits."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()


class Parts:
    """The bytes of one answer."""

    __slots__ = ("kept", "num_bytes")

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.num_bytes = 0

    @property
    def is_too_long(self) -> bool:
        """Not all was kept."""
        return self.num_bytes > MAX_ANSWER_BYTES

    def add(self, part: bytes) -> None:
        """The next ones."""
        self.num_bytes += len(part)
        if not self.is_too_long:
            self.kept.append(part)


def _size(call: Call, num_answered: int) -> int:
    return len(call.raw_body) + num_answered


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
