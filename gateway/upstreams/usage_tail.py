"""What a forwarded answer says at its end about itself: usage and speculation.

Only the last bytes are looked at, and of a long stream the first; the stream itself is never parsed. Each API
has a place of its own for its counts:

- chat and text completions: ``usage`` and ``metrics`` of the last event but ``[DONE]``;
- responses: the same two of the ``response`` in the last event, which repeats all of the answer;
- messages: ``usage`` of ``message_delta``, and what its input was in the ``message`` of ``message_start``.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

TAIL_LIMIT_BYTES = 1 << 14
HEAD_LIMIT_BYTES = 1 << 12
BODY_LIMIT_BYTES = 1 << 20
_USAGE = b'"usage":'  # in a text of the answer its quotes are escaped
_METRICS = b'"metrics":'
_decode_strictly = msgspec.json.Decoder().decode
_decode = json.JSONDecoder().raw_decode


class AnswerTail:
    """Keeps the last bytes of a stream, or a whole body if it is not too large to be worth it."""

    __slots__ = ("_head", "_is_event_stream", "_limit_bytes", "_num_bytes", "_older", "_parts")

    def __init__(self, *, is_event_stream: bool) -> None:
        self._is_event_stream = is_event_stream
        self._limit_bytes = TAIL_LIMIT_BYTES if is_event_stream else BODY_LIMIT_BYTES
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._older: list[bytes] = []
        self._head = b""

    def add(self, part: bytes) -> None:
        """Take the next bytes of the answer."""
        self._parts.append(part)
        self._num_bytes += len(part)
        if self._num_bytes > self._limit_bytes:
            self._turn_over()

    def payload(self) -> dict[str, Any]:
        """The object with the counts, ``usage`` and perhaps ``metrics``; empty if there is none in reach."""
        data = b"".join((*self._older, *self._parts))
        if not self._is_event_stream:
            return _object(data)
        payload = _counted(data)
        if payload.get("type") == "message_delta":
            message = _member(_first_event(self._head or data[:HEAD_LIMIT_BYTES]), "message")
            counted = {name: num for name, num in _member(payload, "usage").items() if num is not None}
            payload["usage"] = {**_member(message, "usage"), **counted}
        return payload

    def _turn_over(self) -> None:
        """Forget all but the last full measure of a stream, in one go; of a body all."""
        if self._is_event_stream:
            self._head = self._head or b"".join(self._parts)[:HEAD_LIMIT_BYTES]
            self._older, self._num_bytes = self._parts, 0
        self._parts = []


def _counted(data: bytes) -> dict[str, Any]:
    """The object around the last ``usage`` in the events at the end of a stream."""
    place = data.rfind(_USAGE)
    if place < 0:
        return {}
    start, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
    line = data[start:] if end < 0 else data[start:end]
    event = _event(line) if len(line) <= TAIL_LIMIT_BYTES else {}  # not all of an answer again
    event = event or {"usage": _cut(line, _USAGE), "metrics": _cut(line, _METRICS)}
    return _member(event, "response") or event


def _first_event(data: bytes) -> dict[str, Any]:
    return next((event for line in data.splitlines() if (event := _event(line))), {})


def _event(line: bytes) -> dict[str, Any]:
    """The object of a ``data:`` line; empty if the line is none, or has lost its beginning."""
    return _object(line.removeprefix(b"data:")) if line.startswith(b"data:") else {}


def _cut(line: bytes, name: bytes) -> object:
    """The last member of this name in an object that is too large, or whose beginning is lost."""
    _, found, rest = line.rpartition(name)
    try:
        return _decode(rest.decode().lstrip())[0] if found else None
    except (ValueError, RecursionError):
        return None


def _object(data: bytes) -> dict[str, Any]:
    for decode in (_decode_strictly, json.loads):  # the first is fast; there are engines that write NaN
        try:
            payload = decode(data)
        except (ValueError, RecursionError):
            continue
        return payload if isinstance(payload, dict) else {}
    return {}


def _member(payload: dict[str, Any], name: str) -> dict[str, Any]:
    member = payload.get(name)
    return member if isinstance(member, dict) else {}
