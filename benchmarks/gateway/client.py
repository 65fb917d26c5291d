"""Clients as light as they can be: keep-alive connections, one request at a time on each, and its times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

MOST_IDLE_S = 2.0  # a server that closes idle connections must not do so just when one is used again


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked: a base URL, and the headers that every request has."""

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
        """What stands before a request's body of so many bytes."""
        own = {"host": urlsplit(self.url).netloc, "content-type": "application/json"}
        headers = {**own, "content-length": str(num_bytes), **self.headers}
        lines = [f"POST {endpoint} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join((*lines, "", "")).encode()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is sent.

    Attributes:
        data: all its bytes.
        expected: the answer's body, byte by byte; None = whatever it is.
        leaves_after_s: the client hangs up so long after it asked; None = it waits for the end.
        leaves_after_parts: or as soon as it saw so many parts of the answer.
    """

    data: bytes
    expected: bytes | None = None
    leaves_after_s: float | None = None
    leaves_after_parts: int | None = None


@dataclass(slots=True)
class Exchange:
    """What a client saw, times by ``time.monotonic_ns()``, 0 = never.

    Attributes:
        due_ns: when the request had to be sent.
        first_ns, last_ns: when the first and the last bytes of the answer's body came.
        left_ns: when the client hung up.
        num_parts: pieces that the body came in.
        longest_silence_ns: between two of them.
        num_bytes: of the body.
        is_changed: whether a byte was not the expected one.
        is_complete: whether the answer came to its end.
        rest: of an answer that goes on after the expected bytes, or differs, the bytes that do.
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
        """Answered, to the end, every byte as it was sent."""
        return self.status == 200 and self.is_complete and not self.is_changed

    def take(self, part: bytes, expected: bytes | None) -> None:
        """The next bytes of the body."""
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
    """One connection; whoever opened it gets it back after each request, see :class:`Pool`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[Exchange] | None = None

    def ask(self, request: Request, due_ns: int) -> asyncio.Future[Exchange]:
        """Send it now."""
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
        """From asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """From asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # the exchange stays incomplete
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """From asyncio."""
        self._pool.forget(self)
        self._end()

    def on_headers_complete(self) -> None:
        """From the parser."""
        self._exchange.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        """From the parser."""
        exchange = self._exchange
        if exchange.left_ns:  # what came in one piece with the last that was wanted
            return
        exchange.take(part, self._request.expected)
        if exchange.num_parts == self._request.leaves_after_parts:
            self._leave(exchange)

    def on_message_complete(self) -> None:
        """From the parser."""
        exchange, expected = self._exchange, self._request.expected
        if not exchange.left_ns:  # else the rest came in one piece with the last part that was wanted
            exchange.is_complete = True
            exchange.is_changed |= expected is not None and exchange.num_bytes != len(expected)
        if self._parser.should_keep_alive() and exchange.is_complete:
            self._pool.take_back(self)
        else:
            self.close()
        self._end()

    def _leave(self, exchange: Exchange) -> None:
        if exchange is self._exchange and self._done:  # and not the next one, or none
            exchange.left_ns = time.monotonic_ns()
            self.close()

    def _end(self) -> None:
        """Tell what came of it, once."""
        if self._done and not self._done.done():
            self._done.set_result(self._exchange)
        self._done = None


class Pool:
    """Connections to one target: the one used last is the next one, and there are as many as it takes.

    Attributes:
        num_opened: connections so far.
    """

    def __init__(self, target: Target) -> None:
        self._address = target.address
        self._idle: dict[Connection, float] = {}  # since when; the last one is the first to be used again
        self._all: set[Connection] = set()
        self.num_opened = 0

    async def ask(self, request: Request, due_ns: int | None = None) -> Exchange:
        """Send it, and wait for the end of the answer, or of the connection.

        Raises:
            OSError: nobody listens.
        """
        due_ns = due_ns or time.monotonic_ns()
        connection = self._idle_one() or await self._open()
        return await connection.ask(request, due_ns)

    def take_back(self, connection: Connection) -> None:
        """It can be asked again."""
        self._idle[connection] = time.monotonic()

    def forget(self, connection: Connection) -> None:
        """It is closed."""
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
