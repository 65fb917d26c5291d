"""One HTTP/1.1 connection to an engine, which streams the response body as bytes.

The lower half of the stream path. httptools finds the head, the parts and the end of a response. Bodies are
not decoded: each part is forwarded in the call that received it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from agentspec.gateway.errors import UpstreamDownError, UpstreamTimeoutError
from agentspec.gateway.http.api_response import RawHeader

MAX_HEAD_BYTES = 1 << 17
MOST_UNREAD_BYTES = 1 << 18  # beyond this, reading pauses: data waits in the kernel, then in the engine


class ByteSink(Protocol):
    """A destination for the parts of a response body."""

    def write_nowait(self, part: bytes) -> None:
        """Write the next part without waiting."""

    @property
    def is_full(self) -> bool:
        """True if the sink should get no more for now."""

    async def drain(self) -> None:
        """Wait until the sink may get more."""


class UpstreamConnection(asyncio.Protocol):
    """An HTTP/1.1 connection to one engine, for one request at a time.

    Call ``send``, then ``stream_to``, or ``read`` until it returns nothing. If ``is_reusable`` is then true,
    another request may follow. To stop earlier, call ``abort``. Failures are raised as UpstreamDownError or
    UpstreamTimeoutError.

    Attributes:
        status: status of the response.
        headers: headers of the response, as received.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_lost = self._is_paused = False
        self.status = 0
        self.headers: list[RawHeader] = []
        self._parts: list[bytes] = []
        self._sink: ByteSink | None = None
        self._begin()

    async def send(
        self, head: bytes, body: bytes, *, is_head: bool, first_byte_s: float, idle_s: float
    ) -> None:
        """Send a request and wait for the head of its response: ``status`` and ``headers``.

        Args:
            is_head: True if the method is HEAD: no body follows, even if the headers announce one.
            first_byte_s: time-out for the head, in seconds.
            idle_s: time-out between two parts of the body, in seconds.
        """
        self._begin()
        self._is_idle = False
        self._has_no_body = is_head
        self._silence_s, self._idle_s = first_byte_s, idle_s
        self._heard_s = self._loop.time()
        self._timer = self._loop.call_later(first_byte_s, self._look_at_the_clock)
        assert self._transport is not None
        self._transport.write(head + body if len(body) < MAX_HEAD_BYTES else head)
        if len(body) >= MAX_HEAD_BYTES:
            self._transport.write(body)
        while not self._has_head:
            await self._news()

    async def stream_to(self, sink: ByteSink) -> None:
        """Write the whole body to ``sink``, each part in the call that received it."""
        try:
            while part := await self.read():
                sink.write_nowait(part)
                if sink.is_full:
                    self._sink = None
                    await sink.drain()  # parts received meanwhile are read afterwards
                self._sink = sink
        finally:
            self._sink = None

    async def read(self) -> bytes:
        """Return the body received since the last call, waiting for some. Empty at its end."""
        while not self._parts:
            if self._is_complete:
                return b""
            await self._news()
        return self._taken()

    @property
    def has_answered(self) -> bool:
        """True if any byte was received for the last request."""
        return self._has_answered

    @property
    def is_reusable(self) -> bool:
        """True if the last response is complete and the connection can carry another request."""
        is_sent = self._transport is not None and not self._transport.get_write_buffer_size()
        is_whole = self._is_complete and self._keeps_alive and is_sent
        return is_whole and not self._is_lost and not self._is_paused

    def abort(self) -> None:
        """Close the connection immediately, which cancels the request in the engine."""
        self._stop_clock()
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, which is ready to send."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes of the response."""
        if self._is_idle:  # unsolicited data: later responses could no longer be matched to requests
            self.abort()
            return
        self._heard_s = self._loop.time()
        self._has_answered = True
        self._num_framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reason = str(error) or type(error).__name__
            self._break(f"sent an invalid HTTP response: {reason}")
            return
        if self._num_framing_bytes > MAX_HEAD_BYTES:  # a head or trailers
            self._break("sent an endless head")
            return
        if self._sink is not None and self._parts and not self._sink.is_full:
            self._put(self._sink)
            if not self._is_complete:
                return
        elif self._num_unread > MOST_UNREAD_BYTES and not self._is_complete:
            self._pause()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle a closed connection, which ends a body without a length and is else an error."""
        self._is_lost = True
        if self._is_idle or self._is_complete:
            return
        if error is None and self._has_head and self._ends_with_connection:
            self.on_message_complete()
            self._wake()
        else:
            self._break(f"broke off: {error or 'it closed the connection'}")

    # httptools

    def on_message_begin(self) -> None:
        """Raise ValueError if a second response begins, which ends the connection."""
        if self._is_complete:
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers after the body are ignored."""
        if not self._has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Read status and framing from the complete head. Raises ValueError for an invalid status."""
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:  # informational: the final response follows
            self.headers = []
            return
        if not 200 <= self.status < 600:
            raise ValueError(f"status {self.status}")
        self._keeps_alive = self._parser.should_keep_alive()
        names = {name.lower() for name, _ in self.headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._has_head = True
        if self._idle_s < self._silence_s:  # the running timer would fire too late
            self._stop_clock()
            self._timer = self._loop.call_later(self._idle_s, self._look_at_the_clock)
        self._silence_s = self._idle_s
        if self._has_no_body:
            self._is_complete, self._keeps_alive = True, False
            self._stop_clock()

    def on_body(self, part: bytes) -> None:
        """Keep the next part of the body."""
        self._num_framing_bytes = 0
        if not self._has_no_body:
            self._parts.append(part)
            self._num_unread += len(part)

    def on_message_complete(self) -> None:
        """Mark the response as complete, unless it was an informational one."""
        if self._has_head:
            self._is_complete = True
            self._is_idle = True
            self._stop_clock()

    def _begin(self) -> None:
        self.status, self.headers, self._parts = 0, [], []
        self._num_unread = self._num_framing_bytes = 0
        self._has_answered = False
        self._has_head = self._is_complete = self._keeps_alive = False
        self._ends_with_connection = self._has_no_body = False
        self._is_idle = True

    def _put(self, sink: ByteSink) -> None:
        try:
            sink.write_nowait(self._taken())
        except Exception as error:  # on the client's side; stream_to raises it
            self._fail(error)

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _taken(self) -> bytes:
        part = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._num_unread = 0
        if self._is_paused:
            self._is_paused = False
            self._heard_s = self._loop.time()  # the time spent paused does not count against the engine
            cast(asyncio.Transport, self._transport).resume_reading()
        return part

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiting = self._loop.create_future()
        await self._waiting
        if self._error is not None and not self._parts:
            raise self._error

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _break(self, what: str) -> None:
        """Close the connection and raise UpstreamDownError in the reader, unless the response is complete."""
        if self._is_complete:
            self.abort()
            self._wake()
        else:
            self._fail(UpstreamDownError(f"the engine at {self._root} {what}"))

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._error is None:
            self._error = error
        self._wake()

    def _look_at_the_clock(self) -> None:
        """Check the time-out. One timer serves a whole response: if it fires too early, it is set again."""
        left_s = self._heard_s + self._silence_s - self._loop.time()
        if left_s > 0 or self._is_paused:  # paused: our reader is slow, not the engine
            self._timer = self._loop.call_later(max(left_s, 0.1), self._look_at_the_clock)
            return
        phase = "said nothing more" if self._has_head else "did not answer"
        self._fail(UpstreamTimeoutError(f"the engine at {self._root} {phase} in time: {self._silence_s:g} s"))

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
