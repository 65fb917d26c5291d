"""One connection to an engine: a request goes out, its answer comes back part by part, as bytes.

The stream path in its lower half. httptools finds where head, parts and end are; nothing of a body is read,
copied or held back: what comes goes on in the same call.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from agentspec.gateway.errors import UpstreamDownError, UpstreamTimeoutError
from agentspec.gateway.http.response_writer import RawHeader

MAX_HEAD_BYTES = 1 << 17
MOST_UNREAD_BYTES = 1 << 18  # more than that waits in the kernel, and then in the engine


class ByteSink(Protocol):
    """Where the parts of an answer go."""

    def write_nowait(self, part: bytes) -> None:
        """Take the next one."""

    @property
    def is_full(self) -> bool:
        """It should not get more for now."""

    async def drain(self) -> None:
        """Wait until it may."""


class UpstreamConnection(asyncio.Protocol):
    """HTTP/1.1 to one engine, one request at a time.

    ``send``, then ``stream_to``, or ``read`` until it gives nothing; ``is_reusable`` then says if another may
    follow. Whoever stops before that calls ``abort``. What goes wrong is raised as UpstreamDownError or
    UpstreamTimeoutError.

    Attributes:
        status: of the answer.
        headers: of the answer, as they came.
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
        """Send a request and wait for the head of its answer: ``status`` and ``headers``.

        Args:
            is_head: the method is HEAD, so that no body follows whatever the headers say.
            first_byte_s: seconds until the head must be there.
            idle_s: seconds between two parts of the body.
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
        """Give all of the body to ``sink``, each part in the call that brings it."""
        try:
            while part := await self.read():
                sink.write_nowait(part)
                if sink.is_full:
                    self._sink = None
                    await sink.drain()  # what comes meanwhile is read afterwards
                self._sink = sink
        finally:
            self._sink = None

    async def read(self) -> bytes:
        """What came of the body since the last time; waits for some. Empty at its end."""
        while not self._parts:
            if self._is_complete:
                return b""
            await self._news()
        return self._taken()

    @property
    def has_answered(self) -> bool:
        """Anything at all came back for the last request."""
        return self._has_answered

    @property
    def is_reusable(self) -> bool:
        """The last answer is complete, and the connection still there for another."""
        is_sent = self._transport is not None and not self._transport.get_write_buffer_size()
        is_whole = self._is_complete and self._keeps_alive and is_sent
        return is_whole and not self._is_lost and not self._is_paused

    def abort(self) -> None:
        """Hang up at once: whatever the engine does for it, it stops."""
        self._stop_clock()
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The next bytes of the answer."""
        if self._is_idle:  # nobody asked: it is no longer clear what belongs to what
            self.abort()
            return
        self._heard_s = self._loop.time()
        self._has_answered = True
        self._num_framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reason = str(error) or type(error).__name__
            self._break(f"sent what is no HTTP answer: {reason}")
            return
        if self._num_framing_bytes > MAX_HEAD_BYTES:  # of a head or of trailers
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
        """The other side hung up; the end of a body that has no other end."""
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
        """A head begins; an answer more than was asked for ends the connection."""
        if self._is_complete:
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; after the body, a trailer, which nobody wants."""
        if not self._has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:  # "continue", or a hint: the answer is still to come
            self.headers = []
            return
        if not 200 <= self.status < 600:
            raise ValueError(f"status {self.status}")
        self._keeps_alive = self._parser.should_keep_alive()
        names = {name.lower() for name, _ in self.headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._has_head = True
        if self._idle_s < self._silence_s:  # the timer that runs would ring too late
            self._stop_clock()
            self._timer = self._loop.call_later(self._idle_s, self._look_at_the_clock)
        self._silence_s = self._idle_s
        if self._has_no_body:
            self._is_complete, self._keeps_alive = True, False
            self._stop_clock()

    def on_body(self, part: bytes) -> None:
        """The next part."""
        self._num_framing_bytes = 0
        if not self._has_no_body:
            self._parts.append(part)
            self._num_unread += len(part)

    def on_message_complete(self) -> None:
        """The answer is whole."""
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
        except Exception as error:  # of the client's side; whoever pours is told
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
            self._heard_s = self._loop.time()  # until now it was not the engine that kept us waiting
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
        """End for what the engine did; if the answer was whole before, nobody needs to know."""
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
        """One timer for a whole answer: it is set again when it rings too early."""
        left_s = self._heard_s + self._silence_s - self._loop.time()
        if left_s > 0 or self._is_paused:  # paused: it is our reader who is slow
            self._timer = self._loop.call_later(max(left_s, 0.1), self._look_at_the_clock)
            return
        phase = "said nothing more" if self._has_head else "did not answer"
        self._fail(UpstreamTimeoutError(f"the engine at {self._root} {phase} in time: {self._silence_s:g} s"))

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
