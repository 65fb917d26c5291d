"""One response to the client: JSON, a stream of bytes, or an error at any point.

Our own server writes each part to the socket in the call that delivers it (``request_cycle``): no task, no
message and no copy in between. Behind any other ASGI server, :class:`AsgiResponseWriter` sends messages.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Message, Send

from agentspec.gateway.errors import describe

BODILESS_STATUSES = frozenset((204, 304))
RawHeader = tuple[bytes, bytes]
RawHeaders = Iterable[RawHeader]
EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE_EVENT = b"data: [DONE]\n\n"


class ResponseWriter(ABC):
    """The interface of response writers.

    Call ``start``, then ``write`` any number of times, then ``end``. Call ``drain`` whenever it ``is_full``.

    Attributes:
        headers: added to every response, including errors. Names in lower case.
        status: status of the response; 0 before it starts.
        is_complete: True if the response has ended.
        reports_disconnect: True if ``on_disconnect`` will be called; else a task must call ``receive``.
        on_disconnect: called if the client disconnects before the response is complete.
        is_client_known: True if the client needs no key here, or has a valid one.
    """

    is_client_known = False
    reports_disconnect = False
    on_disconnect: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.headers: list[RawHeader] = []
        self.status = 0
        self.is_complete = False

    @abstractmethod
    def start(self, status: int, headers: RawHeaders) -> None:
        """Write status and headers. Header names are in lower case."""

    @abstractmethod
    def write(self, part: bytes) -> None:
        """Write the next bytes of the body; at least one."""

    @abstractmethod
    def end(self) -> None:
        """Complete the response."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """True if the client does not keep up, so that further writes are buffered here."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until the client has read the buffered data."""

    async def send(self, message: Message) -> None:
        """Handle one ASGI message, so that an application can use this as ``send``."""
        if message["type"] == "http.response.start":
            self.start(message["status"], message.get("headers", ()))
        else:
            if body := message.get("body", b""):
                self.write(bytes(body))
            if not message.get("more_body", False):
                self.end()
        if self.is_full:
            await self.drain()


class AsgiResponseWriter(ResponseWriter):
    """A response writer on top of another server's ``send``."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._messages: list[dict[str, Any]] = []

    def start(self, status: int, headers: RawHeaders) -> None:
        """See :class:`ResponseWriter`."""
        self.status = status
        all_headers = [*headers, *self.headers]
        self._messages.append({"type": "http.response.start", "status": status, "headers": all_headers})

    def write(self, part: bytes) -> None:
        """See :class:`ResponseWriter`."""
        self._messages.append({"type": "http.response.body", "body": part, "more_body": True})

    def end(self) -> None:
        """See :class:`ResponseWriter`."""
        self.is_complete = True
        self._messages.append({"type": "http.response.body", "body": b""})

    @property
    def is_full(self) -> bool:
        """True always: only ``drain`` sends."""
        return True

    async def drain(self) -> None:
        """See :class:`ResponseWriter`."""
        while self._messages:
            await self._send(self._messages.pop(0))


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":")).encode


def encode_json(payload: object) -> bytes:
    """Return compact UTF-8 JSON. Half a surrogate pair, which UTF-8 can't encode, is escaped."""
    try:
        return _encode(payload).encode()
    except UnicodeEncodeError:
        return _encode_ascii(payload).encode()


def encode_event(payload: object, name: str | None = None) -> bytes:
    """Return one server-sent event, named if the API names its events."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(payload) + b"\n\n"


class ApiResponse:
    """Writes one response.

    Attributes:
        listeners: callables that receive every part of the body.
        failure: error that broke off a response that had started; None if there was none.
        has_typed_events: the events of its stream have a name and a ``type``.
    """

    failure: Exception | None = None
    has_typed_events = False

    def __init__(self, writer: ResponseWriter, request_id: str | None = None) -> None:
        self._writer = writer
        self._request_id = request_id
        self._is_event_stream = False
        self._end = b"\n\n"  # the last two bytes
        self.listeners: list[Callable[[bytes], object]] = []

    @property
    def headers(self) -> list[RawHeader]:
        """Headers that are added to every response, including errors."""
        return self._writer.headers

    @property
    def status(self) -> int:
        """Status of the response; 0 before it starts."""
        return self._writer.status

    @property
    def is_started(self) -> bool:
        """True if the status was sent. No other response is possible then."""
        return self._writer.status != 0

    async def send_json(self, status: int, payload: Any) -> None:
        """Send a whole JSON response."""
        body = encode_json(payload)
        await self.start(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        )
        await self.write(body)
        await self.end()

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send status and headers; ``write`` and ``end`` follow."""
        own = list(headers)
        self._is_event_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in own
        )
        self._writer.start(status, own)
        await self.drain()

    async def write(self, part: bytes) -> None:
        """Send the next bytes of the body immediately."""
        if part:
            self.write_nowait(part)
            await self.drain()

    def write_nowait(self, part: bytes) -> None:
        """Write without waiting. Call ``drain`` while ``is_full``."""
        self._end = part[-2:] if len(part) > 1 else (self._end + part)[-2:]
        for listener in self.listeners:
            listener(part)
        self._writer.write(part)

    @property
    def is_full(self) -> bool:
        """True if the client does not keep up."""
        return self._writer.is_full

    async def drain(self) -> None:
        """Wait until the client keeps up."""
        if self._writer.is_full:
            await self._writer.drain()

    async def end(self) -> None:
        """Complete the response."""
        self._writer.end()
        await self.drain()

    def describe(self, error: Exception) -> tuple[int, dict[str, Any]]:
        """Note and log ``error``; return status and body for the client."""
        has_begun = self.is_started and not self._writer.is_complete
        if has_begun:
            self.failure = error
        return describe(error, self._request_id, has_begun=has_begun)

    async def fail(self, error: Exception) -> None:
        """Send ``error`` to the client: as a status if nothing was sent yet, else as an event in the stream.

        Any other body can't carry an error. It stays without its end, so the server drops the connection.
        The client then does not mistake a partial response for a complete one.
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
        if self.has_typed_events:
            typed = {**payload["error"], **payload, "type": "error"}
            await self.write(encode_event(typed, "error"))
        else:
            await self.write(encode_event(payload))
        await self.end()
