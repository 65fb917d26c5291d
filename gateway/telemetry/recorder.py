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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, RequestError
from agentspec.gateway.call import ApiCall, Endpoint
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.openai.messages import read_messages
from agentspec.gateway.openai.responses_input import read_input

MAX_ANSWER_BYTES = 16 << 20
MAX_WAITING = 256
MAX_WAITING_BYTES = 64 << 20  # a single call is taken regardless of its size

logger = logging.getLogger("agentspec.gateway")
# with one of these the body does not hold the complete request
MORE = ("previous_response_id", "conversation", "suffix", "echo")


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


Json = dict[str, Any]


def recorded_request(path: str, body: Mapping[str, Any]) -> Json:
    """Return ``messages`` and ``tools``, or ``prompt``.

    Raises RequestError if these are not the complete request, or not text.
    """
    if more := [name for name in MORE if body.get(name)]:
        raise RequestError(f"calls with {more[0]} are not recorded")
    if path == Endpoint.CHAT:
        return {"messages": read_messages(body.get("messages") or []), "tools": body.get("tools")}
    if path == Endpoint.RESPONSES:
        return {"messages": read_input(body.get("input"), body.get("instructions"))}
    if path == Endpoint.COMPLETIONS and isinstance(body.get("prompt"), str):
        return {"prompt": body["prompt"]}
    raise RequestError(f"calls of {path} are not recorded in this form")


def recorded_response(path: str, answer: bytes) -> Json:
    """Return the choices of a response, whole or streamed.

    Raises RequestError if there are none or the response is incomplete.
    """
    payloads = list(_payloads(answer))
    if path == Endpoint.RESPONSES:
        last = payloads[-1] if payloads else {}
        return {"choices": [_of_items(last.get("response", last))]}
    choices: dict[int, Json] = {}
    for payload in payloads:
        for choice in payload.get("choices") or []:
            _add(choices.setdefault(choice.get("index", 0), {}), choice)
    if not choices or any(choice.get("finish_reason") is None for choice in choices.values()):
        raise RequestError("the answer has no end")
    return {"choices": [_ended(choices[index]) for index in sorted(choices)]}


def _payloads(answer: bytes) -> Iterator[Json]:
    """Yield the object of a whole response, or the objects of its events."""
    text = answer.decode("utf-8", "replace")
    if text.lstrip()[:1] == "{":
        yield json.loads(text)
        return
    for line in text.split("\n"):
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            yield json.loads(line[5:])


def _add(choice: Json, part: Json) -> None:
    """Merge a choice or its next chunk. Tool calls arrive in pieces with their index."""
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
    message = part.get("message") or part.get("delta") or {"content": part.get("text")}
    choice["content"] = choice.get("content", "") + (message.get("content") or "")
    if message.get("function_call"):
        raise RequestError("calls of functions are recorded only in the form of tool_calls")
    calls = choice.setdefault("calls", {})
    for number, call in enumerate(message.get("tool_calls") or []):
        known = calls.setdefault(
            call.get("index", number), {"id": call.get("id"), "name": "", "arguments": ""}
        )
        for name in ("name", "arguments"):
            known[name] += (call.get("function") or {}).get(name) or ""


def _ended(choice: Json) -> Json:
    message: Json = {"role": "assistant", "content": choice["content"] or None}
    if choice["calls"]:
        message["tool_calls"] = [_call(**call) for _, call in sorted(choice["calls"].items())]
    elif message["content"] is None:
        message["content"] = ""
    return {"message": message, "finish_reason": choice["finish_reason"]}


def _of_items(response: Json) -> Json:
    """Return a response's output as a choice."""
    if response.get("status") not in ("completed", "incomplete"):
        raise RequestError("the answer has no end")
    content, calls = "", {}
    for number, item in enumerate(response.get("output") or []):
        if item.get("type") == "message":
            content += "".join(part.get("text") or "" for part in item.get("content") or [])
        elif item.get("type") == "function_call":
            calls[number] = {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
    reason = "length" if response["status"] == "incomplete" else "tool_calls" if calls else "stop"
    return _ended({"content": content, "calls": calls, "finish_reason": reason})


def _call(id: str | None, name: str, arguments: str) -> Json:  # noqa: A002  (OpenAI's name)
    if not name:
        raise RequestError("only calls of functions are recorded")
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
