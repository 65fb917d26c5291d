"""One answer on its way to the client: JSON, a stream of bytes, or an error at any point of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agentspec.gateway.errors import describe
from agentspec.gateway.http.response_writer import RawHeader, RawHeaders, ResponseWriter

EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
DONE_EVENT = b"data: [DONE]\n\n"


def encode_json(payload: object) -> bytes:
    """Compact UTF-8 JSON."""
    return _encode(payload).encode()


def encode_event(payload: object, name: str | None = None) -> bytes:
    """One server-sent event, with a name where the API has names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(payload) + b"\n\n"


class ApiResponse:
    """Writes one answer.

    Attributes:
        listeners: are told of every part of the body.
        failure: why the answer broke off after it had begun; None if it did not.
    """

    failure: Exception | None = None

    def __init__(self, writer: ResponseWriter, request_id: str | None = None) -> None:
        self._writer = writer
        self._request_id = request_id
        self._is_event_stream = False
        self._end = b"\n\n"  # the last two bytes
        self.listeners: list[Callable[[bytes], object]] = []

    @property
    def headers(self) -> list[RawHeader]:
        """Are added to whatever answer it becomes, errors included."""
        return self._writer.headers

    @property
    def status(self) -> int:
        """Of the answer; 0 before."""
        return self._writer.status

    @property
    def is_started(self) -> bool:
        """The status is on its way: another answer can't be given any more."""
        return self._writer.status != 0

    async def send_json(self, status: int, payload: Any) -> None:
        """A whole JSON answer."""
        body = encode_json(payload)
        await self.start(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        )
        await self.write(body)
        await self.end()

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Status and headers; ``write`` and ``end`` follow."""
        own = list(headers)
        self._is_event_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in own
        )
        self._writer.start(status, own)
        await self.drain()

    async def write(self, part: bytes) -> None:
        """The next bytes of the body, sent at once."""
        if part:
            self.write_nowait(part)
            await self.drain()

    def write_nowait(self, part: bytes) -> None:
        """As ``write``, but it does not wait: whoever has more calls ``drain`` while it ``is_full``."""
        self._end = part[-2:] if len(part) > 1 else (self._end + part)[-2:]
        for listener in self.listeners:
            listener(part)
        self._writer.write(part)

    @property
    def is_full(self) -> bool:
        """The client does not keep up."""
        return self._writer.is_full

    async def drain(self) -> None:
        """Wait until it does."""
        if self._writer.is_full:
            await self._writer.drain()

    async def end(self) -> None:
        """Nothing follows."""
        self._writer.end()
        await self.drain()

    def describe(self, error: Exception) -> tuple[int, dict[str, Any]]:
        """Note and log ``error``; status and body for the client."""
        has_begun = self.is_started and not self._writer.is_complete
        if has_begun:
            self.failure = error
        return describe(error, self._request_id, has_begun=has_begun)

    async def fail(self, error: Exception) -> None:
        """Tell the client of ``error``: by status if nothing was sent yet, else by an event in the stream.

        A body that is neither can't carry an error. It is left without its end, which makes the server
        drop the connection, so that the client does not take half an answer for a whole one.
        """
        status, payload = self.describe(error)
        if not self.is_started:
            self.headers.extend(getattr(error, "headers", ()))
            await self.send_json(status, payload)
            return
        if self._writer.is_complete or not self._is_event_stream:
            return
        if self._end != b"\n\n":  # the upstream broke off inside an event
            await self.write(b"\n\n")
        await self.write(encode_event(payload))
        await self.end()
