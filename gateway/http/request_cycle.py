"""One request to our own server, its HTTP/1.1 response, and the flow control of the connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Scope

from agentspec.gateway.http.api_response import BODILESS_STATUSES, RawHeader, RawHeaders, ResponseWriter
from agentspec.gateway.http.context import open_context

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)
}
RESET = struct.pack("ii", 1, 0)  # the kernel drops unsent data and resets the connection

logger = logging.getLogger("agentspec.gateway")


class FlowControl:
    """Pauses reading on request, and records whether the transport's write buffer is full.

    Attributes:
        is_full: True from the transport's ``pause_writing`` to its ``resume_writing``.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_reading = True
        self._is_held = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_full = False

    def pause_reading(self) -> None:
        """Stop reading, so that TCP stops the client. A second call changes nothing."""
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless reading is held. A second call changes nothing."""
        if not self._is_reading and not self._is_held:
            self._is_reading = True
            self._transport.resume_reading()

    def hold_reading(self) -> None:
        """Stop reading until :meth:`release_reading`."""
        self._is_held = True
        self.pause_reading()

    def release_reading(self) -> None:
        """Read again after :meth:`hold_reading`."""
        self._is_held = False
        self.resume_reading()

    def pause_writing(self) -> None:
        """Handle a write buffer above its high-water mark."""
        self.is_full = True
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Handle a write buffer below its low-water mark, or the end of the connection."""
        self.is_full = False
        self._may_write.set()

    async def drain(self) -> None:
        """Wait while the write buffer is full."""
        await self._may_write.wait()


class Http11Cycle(ResponseWriter):
    """The request and response writer that :class:`ClientConnection` creates for every request.

    Args:
        scope: the request's scope; gets a context with this object as its writer.
        server_headers: headers of every response.
        keep_alive: True if the client may send another request on this connection.
        expects_continue: True if the client waits for ``100 Continue`` before it sends the body.
        is_dated: True if the client speaks HTTP/1.0, which has no chunks.
        on_end: called when the response is complete.
    """

    reports_disconnect = True

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        server_headers: list[RawHeader],
        *,
        keep_alive: bool,
        expects_continue: bool,
        is_dated: bool,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()
        open_context(scope, self)
        self.keep_alive = keep_alive
        self.disconnected = False
        self.body = bytearray()
        self.more_body = True
        self.message_event = asyncio.Event()
        self._scope: Scope | None = scope
        self._is_head = scope["method"] == "HEAD"
        self._transport = transport
        self._flow = flow
        self._server_headers = server_headers
        self._expects_continue = expects_continue
        self._is_dated = is_dated
        self._on_end = on_end
        self._has_body = self._is_chunked = self._ends_with_connection = False
        self._num_left = 0  # bytes still to send of the announced content-length

    @property
    def can_go_on(self) -> bool:
        """True if another request may follow on this connection: every announced byte was sent."""
        return self.keep_alive and not self._num_left

    async def run_asgi(self, app: ASGIApp) -> None:
        """Let ``app`` respond. If it does not, send a 500 or, after the start, break the connection off."""
        scope, self._scope = self._scope, None  # else a reference cycle remains
        assert scope is not None
        try:
            await app(scope, self.receive, self.send)
        except Exception as error:
            logger.error("unexpected error", exc_info=error)
        finally:
            if not self.is_complete and not self.disconnected:
                if not self.status:
                    self.keep_alive = False
                    self.start(500, [(b"content-length", b"0")])
                    self.end()
                else:
                    self._break_off()
            self._on_end = _nothing  # else protocol and cycle would keep each other alive

    async def receive(self) -> Message:
        """Return the next ASGI message: the request's body, then the client's disconnect."""
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.disconnected and not self.is_complete:
            self._flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def start(self, status: int, headers: RawHeaders) -> None:
        """Write the head."""
        self.status = status
        if self._expects_continue:  # the body was not requested, so the client may or may not send it
            self._expects_continue, self.keep_alive = False, False
        if self.disconnected:
            return
        lines, length = [STATUS_LINES[status]], None
        for name, value in (*self._server_headers, *headers, *self.headers):
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            lines += (name, b": ", value, b"\r\n")
        self._has_body = not self._is_head and status not in BODILESS_STATUSES
        if self._has_body and length is not None:
            self._num_left = length
        elif self._has_body and self._is_dated:
            self.keep_alive, self._ends_with_connection = False, True
        elif self._has_body:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._transport.write(b"".join(lines))

    def write(self, part: bytes) -> None:
        """Write the next part. Does nothing if no body is allowed or the client has disconnected."""
        if self.disconnected or not self._has_body:
            return
        if self._is_chunked:
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        elif self._ends_with_connection:
            self._transport.write(part)
        else:
            self.keep_alive = self.keep_alive and len(part) <= self._num_left
            self._transport.write(part[: self._num_left])
            self._num_left = max(0, self._num_left - len(part))

    def end(self) -> None:
        """Complete the response."""
        if self._is_chunked and not self.disconnected:
            self._transport.write(b"0\r\n\r\n")
        self.is_complete = True
        self.message_event.set()
        self._on_end()

    def lose(self) -> None:
        """Handle the client's disconnect."""
        if self.is_complete:
            return
        self.disconnected = True
        self.message_event.set()
        if self.on_disconnect is not None:
            self.on_disconnect()

    @property
    def is_full(self) -> bool:
        """See :class:`ResponseWriter`."""
        return self._flow.is_full and not self.disconnected

    async def drain(self) -> None:
        """See :class:`ResponseWriter`."""
        await self._flow.drain()

    def _break_off(self) -> None:
        """Close, so that a partial response does not look complete."""
        if self._ends_with_connection:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._transport.abort()
        else:
            self._transport.close()


def _nothing() -> None:
    pass
