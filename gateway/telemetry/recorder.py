"""Records requests and responses in a file that can be replayed (docs/replay-engine.md).

Recording does not delay streams: parts of a response are kept as they pass, and a thread joins and writes
them. Calls that are too long, or that exceed the queue's limits, are left out and counted. The file holds
prompts and responses of all tenants. A new file is readable by its owner only.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import queue
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, RequestError
from agentspec.gateway.call import ApiCall
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.telemetry.recorded_call import recorded_request, recorded_response

MAX_ANSWER_BYTES = 16 << 20
MAX_WAITING = 256
MAX_WAITING_BYTES = 64 << 20  # a single call is taken regardless of its size

logger = logging.getLogger("agentspec.gateway")


class LineFile:
    """A file for appending lines, each whole or not at all. A new file is readable by its owner only.

    A partial line left by a killed process is removed on opening. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)  # else it can't be truncated
        try:
            with self._alone() as size:
                self._end_last_line(size)
        except BaseException:
            self.close()
            raise

    def append(self, line: bytes) -> None:
        """Write a line. Raises OSError, and leaves the file unchanged, if the whole line does not fit."""
        with self._alone() as size:
            try:
                self._write(line)
            except OSError:
                if self._is_regular:
                    os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Yield the file's size while holding an exclusive lock."""
        if not self._is_regular:
            yield 0
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield os.fstat(self._descriptor).st_size
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _end_last_line(self, size: int) -> None:
        if not size:
            return
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as whole:
            start = whole.rfind(b"\n") + 1
            last = whole[start:]
        if _is_half(last):
            os.ftruncate(self._descriptor, start)
            logger.warning("the last line is incomplete: its %d bytes are removed", len(last))
        elif last:
            self._write(b"\n")


def _is_half(line: bytes) -> bool:
    """Return True for an object without its end. Other invalid lines were not written by us."""
    try:
        json.loads(line)
    except ValueError:
        return line.startswith(b"{")
    return False


class Recorder:
    """Appends finished calls to a file, one per line.

    Raises:
        ConfigError: the file can't be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise ConfigError(f"can't record into {str(path)!r}: {error.strerror}") from None
        self._waiting: queue.Queue[tuple[ApiCall, bytes] | None] = queue.Queue(MAX_WAITING)
        self._num_bytes_taken = 0  # each counter has a single writer thread
        self._num_bytes_done = 0
        self.num_left_out = 0
        self._thread = threading.Thread(target=self._run, name="agentspec-recorder", daemon=True)
        self._thread.start()

    def listen(self, response: ApiResponse) -> AnswerParts:
        """Collect the parts of a response as they pass."""
        parts = AnswerParts()
        response.listeners.append(parts.add)
        return parts

    def record(self, call: ApiCall, parts: AnswerParts) -> None:
        """Queue a call with a complete response. Never blocks."""
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
            except RequestError:  # its message may quote the content
                logger.debug("%s was not recorded: %s is not for replays", call.request_id, call.path)
            except Exception:
                logger.exception("%s was not recorded", call.request_id)
            self._num_bytes_done += _size(call, len(answer))

    def close(self) -> None:
        """Write the queued calls, then close the file."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()


class AnswerParts:
    """The bytes of one response."""

    __slots__ = ("kept", "num_bytes")

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.num_bytes = 0

    @property
    def is_too_long(self) -> bool:
        """True if parts were discarded."""
        return self.num_bytes > MAX_ANSWER_BYTES

    def add(self, part: bytes) -> None:
        """Add the next part."""
        self.num_bytes += len(part)
        if not self.is_too_long:
            self.kept.append(part)


def _size(call: ApiCall, num_answered: int) -> int:
    return len(call.raw_body) + num_answered


def _line(call: ApiCall, answer: bytes) -> bytes:
    tags = call.tags
    record: dict[str, Any] = {
        **recorded_request(call.path, call.body or {}),
        "response": recorded_response(call.path, answer),
        "model": call.model,
        "stage": tags and tags.stage.name,
        "session": tags and tags.session,
    }
    present = {name: value for name, value in record.items() if value is not None}
    return json.dumps(present, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
