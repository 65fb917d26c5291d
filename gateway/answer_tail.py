"""What a forwarded answer says at its end about itself: usage and speculation.

Only the last bytes are looked at; the stream itself is never parsed.
"""

from __future__ import annotations

import json
from typing import Any

EVENT_LIMIT_BYTES = 1 << 14
BODY_LIMIT_BYTES = 1 << 20


class AnswerTail:
    """Keeps the last event of a stream, or a whole body if it is not too large to be worth it."""

    def __init__(self, *, is_event_stream: bool) -> None:
        self._is_event_stream = is_event_stream
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def add(self, part: bytes) -> None:
        """Take the next bytes of the answer."""
        if self._is_event_stream:
            joined = b"".join([*self._parts, part])
            self._parts = [joined[-EVENT_LIMIT_BYTES:]]
        elif self._num_bytes <= BODY_LIMIT_BYTES:
            self._parts.append(part)
            self._num_bytes += len(part)

    def payload(self) -> dict[str, Any]:
        """The last JSON object; empty if there is none or it is too large."""
        if self._num_bytes > BODY_LIMIT_BYTES:
            return {}
        data = b"".join(self._parts)
        if self._is_event_stream:
            data = _last_event(data)
        try:
            payload = json.loads(data)
        except (ValueError, RecursionError):
            return {}
        return payload if isinstance(payload, dict) else {}


def _last_event(data: bytes) -> bytes:
    """The data of the last event but ``[DONE]``; empty if there is none."""
    for line in reversed(data.splitlines()):
        event = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and event != b"[DONE]":
            return event
    return b""
