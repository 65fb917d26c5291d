"""Lightweight clients: keep-alive connections with one timed request at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

MOST_IDLE_S = 2.0  # never reuse a connection that the server may just be closing as idle


@dataclass(frozen=True, slots=True)
class Target:
    """The server to ask: a base URL, and headers for every request."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        assert parts.hostname
        assert parts.port
        return parts.hostname, parts.port

    def head(self, endpoint: str, num_bytes: int) -> bytes:
        """Return the request head for a body of ``num_bytes``."""
        own = {"host": urlsplit(self.url).netloc, "content-type": "application/json"}
        headers = {**own, "content-length": str(num_bytes), **self.headers}
        lines = [f"POST {endpoint} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join((*lines, "", "")).encode()


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        data: all bytes to send.
        expected: the exact response body; None accepts any.
        leaves_after_s: the client hangs up after this time; None = it waits for the end.
        leaves_after_parts: the client hangs up after this number of body parts.
    """

    data: bytes
    expected: bytes | None = None
    leaves_after_s: float | None = None
    leaves_after_parts: int | None = None


@dataclass(slots=True)
class Exchange:
    """A client's record of one request; times from ``time.monotonic_ns()``, 0 = never.

    Attributes:
        due_ns: when the request had to be sent.
        first_ns, last_ns: arrival of the first and of the last bytes of the response body.
        left_ns: when the client hung up.
        num_parts: number of pieces that the body arrived in.
        longest_silence_ns: longest time between two pieces.
        num_bytes: length of the body.
        is_changed: true if a byte differs from the expected one.
        is_complete: true if the response was received to its end.
        rest: received bytes from the first that differs from ``expected``, or exceeds it.
    """

    due_ns: int
    status: int = 0
    first_ns: int = 0
    last_ns: int = 0
    left_ns: int = 0
    num_parts: int = 0
    longest_silence_ns: int = 0
    num_bytes: int = 0
    is_changed: bool = False
    is_complete: bool = False
    rest: bytes = b""

    @property
    def is_good(self) -> bool:
        """True if the response has status 200, is complete, and has the expected bytes."""
        return self.status == 200 and self.is_complete and not self.is_changed

    def take(self, part: bytes, expected: bytes | None) -> None:
        """Record the next bytes of the body."""
        now_ns = time.monotonic_ns()
        if self.num_parts:
            self.longest_silence_ns = max(self.longest_silence_ns, now_ns - self.last_ns)
        else:
            self.first_ns = now_ns
        self.last_ns = now_ns
        self.num_parts += 1
        if expected is not None and (self.is_changed or not expected.startswith(part, self.num_bytes)):
            self.rest += part if self.is_changed else part.removeprefix(expected[self.num_bytes :])
            self.is_changed = True
        self.num_bytes += len(part)


class Connection(asyncio.Protocol):
    """One keep-alive connection, returned to its :class:`Pool` after each request."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[Exchange] | None = None

    def ask(self, request: Request, due_ns: int) -> asyncio.Future[Exchange]:
        """Send the request now; the future resolves at the end of the response or of the connection."""
        loop = asyncio.get_running_loop()
        self._request, self._exchange, self._done = request, Exchange(due_ns), loop.create_future()
        self._transport.write(request.data)
        if request.leaves_after_s is not None:
            loop.call_later(request.leaves_after_s, self._leave, self._exchange)
        return self._done

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # the record stays incomplete
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Leave the pool and end the request in progress."""
        self._pool.forget(self)
        self._end()

    def on_headers_complete(self) -> None:
        """Record the status."""
        self._exchange.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        """Record a part of the body; hang up if the client leaves after it."""
        exchange = self._exchange
        if exchange.left_ns:  # arrived in one piece with the last part wanted
            return
        exchange.take(part, self._request.expected)
        if exchange.num_parts == self._request.leaves_after_parts:
            self._leave(exchange)

    def on_message_complete(self) -> None:
        """Complete the record; return the connection to the pool, or close it."""
        exchange, expected = self._exchange, self._request.expected
        if not exchange.left_ns:  # else the rest arrived in one piece with the last part wanted
            exchange.is_complete = True
            exchange.is_changed |= expected is not None and exchange.num_bytes != len(expected)
        if self._parser.should_keep_alive() and exchange.is_complete:
            self._pool.take_back(self)
        else:
            self.close()
        self._end()

    def _leave(self, exchange: Exchange) -> None:
        if exchange is self._exchange and self._done:  # the request may have ended since
            exchange.left_ns = time.monotonic_ns()
            self.close()

    def _end(self) -> None:
        """Resolve the future, once."""
        if self._done and not self._done.done():
            self._done.set_result(self._exchange)
        self._done = None


class Pool:
    """Keep-alive connections to one target, opened on demand; the most recently used is reused first.

    Attributes:
        num_opened: number of connections opened so far.
    """

    def __init__(self, target: Target) -> None:
        self._address = target.address
        self._idle: dict[Connection, float] = {}  # since when; the last is reused first
        self._all: set[Connection] = set()
        self.num_opened = 0

    async def ask(self, request: Request, due_ns: int | None = None) -> Exchange:
        """Send a request, and wait for the end of the response or of the connection.

        Raises:
            OSError: the connection was refused.
        """
        due_ns = due_ns or time.monotonic_ns()
        connection = self._idle_one() or await self._open()
        return await connection.ask(request, due_ns)

    def take_back(self, connection: Connection) -> None:
        """Mark a connection as idle."""
        self._idle[connection] = time.monotonic()

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._all.discard(connection)
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Hang up on every connection."""
        for connection in tuple(self._all):
            connection.close()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection, since_s = self._idle.popitem()
            if time.monotonic() - since_s < MOST_IDLE_S:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self), *self._address)
        self._all.add(connection)
        self.num_opened += 1
        return connection
