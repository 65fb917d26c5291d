"""One answer on its way to the client: JSON, a stream of bytes, or an error at any point of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Send

from agentspec.gateway.errors import describe

RawHeaders = Iterable[tuple[bytes, bytes]]

EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE_EVENT = b"data: [DONE]\n\n"


def encode_json(payload: object) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def encode_event(payload: object, name: str | None = None) -> bytes:
    """One server-sent event, with a name where the API has names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(payload) + b"\n\n"


class Reply:
    """Writes one answer. ``headers`` are added to whatever answer it becomes, errors included.

    Attributes:
        is_started: the status is on its way: another answer can't be given any more.
        status: which; 0 before.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False
        self.status = 0
        self._is_event_stream = False
        self._last_bytes = b"\n\n"  # at least the last two
        self.headers: list[tuple[bytes, bytes]] = []

    async def send_json(self, status: int, payload: Any) -> None:
        """A whole JSON answer."""
        body = encode_json(payload)
        await self.start(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        )
        await self._send({"type": "http.response.body", "body": body})

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Status and headers; ``write`` and ``end`` follow."""
        own = list(headers)
        self._is_event_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in own
        )
        self.is_started = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*own, *self.headers]})

    async def write(self, part: bytes) -> None:
        """The next bytes of the body, sent at once."""
        if part:
            self._last_bytes = (self._last_bytes + part[-2:])[-2:]
            await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        """Nothing follows."""
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: Exception) -> None:
        """Tell the client of ``error``: by status if nothing was sent yet, else by an event in the stream.

        A body that is neither can't carry an error. It is left without its end, which makes the server
        drop the connection, so that the client does not take half an answer for a whole one.
        """
        status, payload = describe(error)
        if not self.is_started:
            self.headers.extend(getattr(error, "headers", ()))
            await self.send_json(status, payload)
            return
        if not self._is_event_stream:
            return
        if self._last_bytes != b"\n\n":  # the upstream broke off inside an event
            await self.write(b"\n\n")
        await self.write(encode_event(payload))
        await self.end()
