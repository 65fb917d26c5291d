"""An engine that violates HTTP. The request's ``x-way`` header selects its behaviour."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from tests.gateway.support.live import TIMEOUT_S

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = OK + b"content-length: 2\r\n\r\n{}"
EVENT = b'data: {"choices":[]}\n\n'
BIG_EVENT = b'data: {"choices":["%s"]}\n\n' % (b"x" * 60_000)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Peer:
    """One connection from the gateway, with its current request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.num_requests = 0

    async def read(self) -> bytes:
        """Return the next request, or empty bytes after the last one."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        self.num_requests += 1
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        return head + (await self._reader.readexactly(int(length[1])) if length else b"")

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()

    async def hang(self) -> None:
        """Wait until the other side closes the connection."""
        while await self._reader.read(65536):
            pass

    async def flood(self, part: bytes) -> None:
        """Send until the other side closes the connection. Raise TimeoutError if it accepts all data."""
        for _ in range(1_000):
            await self.send(part)
        raise TimeoutError


async def falls_silent(peer: Peer) -> None:
    """Send three events, one after the other, then no more data."""
    await peer.send(EVENTS + chunk(EVENT))
    for _ in range(2):
        await asyncio.sleep(0.05)
        await peer.send(chunk(EVENT))
    await peer.hang()


Way = Callable[[Peer], Awaitable[None]]


def sends(*parts: bytes, stays: bool = True) -> Way:
    """Return a behaviour that sends the parts, then keeps the connection open or closes it."""

    async def way(peer: Peer) -> None:
        await peer.send(*parts)
        if not stays:
            raise ConnectionError

    return way


def hangs(*parts: bytes) -> Way:
    async def way(peer: Peer) -> None:
        await peer.send(*parts)
        await peer.hang()

    return way


def floods(start: bytes, part: bytes) -> Way:
    async def way(peer: Peer) -> None:
        await peer.send(start)
        await peer.flood(part)

    return way


async def closes_on_reuse(peer: Peer) -> None:
    """Respond to the first request of a connection and close it at the second."""
    if peer.num_requests > 1:
        raise ConnectionError
    await peer.send(WHOLE)


WAYS: dict[str, Way] = {
    "well": sends(WHOLE),
    "hangs up at once": sends(stays=False),
    "hangs": hangs(),
    "hangs in the head": hangs(OK),
    "hangs in the body": hangs(OK + b'content-length: 9\r\n\r\n{"a"'),
    "hangs in the stream": hangs(EVENTS + chunk(EVENT)),
    "dies in the head": sends(OK, stays=False),
    "dies in the body": sends(OK + b'content-length: 9\r\n\r\n{"a"', stays=False),
    "dies in a chunked body": sends(
        OK + b"transfer-encoding: chunked\r\n\r\n" + chunk(b'{"half":'), stays=False
    ),
    "dies in the stream": sends(EVENTS + chunk(EVENT), stays=False),
    "dies in a chunk": sends(EVENTS + b"ffff\r\n" + EVENT, stays=False),
    "garbage": sends(b"\x16\x03\x01 no HTTP at all\r\n\r\n"),
    "endless head": floods(OK, b"x-more: " + b"x" * 4000 + b"\r\n"),
    "endless header": floods(OK + b"x-more: ", b"x" * 65536),
    "endless hints": floods(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
    "endless trailers": floods(EVENTS + chunk(EVENT) + b"0\r\n", b"x-more: " + b"x" * 4000 + b"\r\n"),
    "endless trailer": floods(EVENTS + chunk(EVENT) + b"0\r\nx: ", b"x" * 65536),
    "endless chunk extension": floods(EVENTS + chunk(EVENT) + b"5;", b"x" * 65536),
    "status 999": sends(b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}"),
    "status 42": sends(b"HTTP/1.1 42 What\r\ncontent-length: 2\r\n\r\n{}"),
    "status 101": sends(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n{}"),
    "control character": sends(OK + b"x-odd: a\x01b\r\ncontent-length: 2\r\n\r\n{}"),
    "two lengths": sends(OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "length and chunks": sends(
        OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"{}")
    ),
    "chunked garbage": sends(EVENTS + chunk(EVENT) + b"zz\r\nno chunk\r\n"),
    "length too small": sends(OK + b"content-length: 2\r\n\r\n{}, and more"),
    "two answers": sends(WHOLE + b"HTTP/1.1 500 No\r\ncontent-length: 3\r\n\r\n{!}"),
    "two answers, late": sends(WHOLE, b"HTTP/1.1 500 No\r\ncontent-length: 3\r\n\r\n{!}"),
    "hints": sends(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nx-hint: 1\r\n\r\n" + WHOLE),
    "HTTP/1.0": sends(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{", b"}", stays=False),
    "closes": sends(OK + b"connection: close\r\ncontent-length: 2\r\n\r\n{}", stays=False),
    "closes on reuse": closes_on_reuse,
    "trailers": sends(
        EVENTS + chunk(EVENT) + b"0\r\nx-agentspec-stage: other\r\n\r\n",
    ),
    "redirect": sends(
        b"HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"
    ),
    "nothing": sends(b"HTTP/1.1 204 Nothing\r\n\r\n"),
    "nothing, with a length": sends(b"HTTP/1.1 204 Nothing\r\ncontent-length: 7\r\n\r\n"),
    "not modified": sends(b"HTTP/1.1 304 Same\r\netag: x\r\ncontent-length: 7\r\n\r\n"),
    "500": sends(
        b'HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"error": 1}'
    ),
    "head": sends(OK + b"content-length: 1234\r\n\r\n"),
    "falls silent": falls_silent,
    "streams for ever": floods(EVENTS, chunk(BIG_EVENT)),
}


class Misbehaving:
    """The server, in a thread of its own.

    Attributes:
        num_open: number of open connections.
        requests: received requests, in order.
        has_request, has_lost: set when a request arrives, and when either side ends a connection.
    """

    def __init__(self) -> None:
        self.num_open = 0
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.tasks: dict[asyncio.Task[None], asyncio.WriteTransport] = {}  # of open connections
        self.has_request, self.has_lost = threading.Event(), threading.Event()
        self.url = ""

    @property
    def num_posts(self) -> int:
        """Number of requests from clients. The gateway's own probes are GETs."""
        return sum(request.startswith(b"POST ") for request in self.requests)

    def start(self, server: asyncio.Server) -> None:
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks[task] = writer.transport
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(Peer(reader, writer))
        finally:
            writer.close()
            self.num_open -= 1
            self.has_lost.set()

    async def end(self) -> None:
        """Abort all connections, which ends their tasks."""
        for transport in self.tasks.values():
            transport.abort()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the last transport closes its socket

    async def _answer(self, peer: Peer) -> None:
        while True:
            request = await peer.read()
            self.requests.append(request)
            self.has_request.set()
            way = re.search(rb"x-way: (.*)\r", request)
            await WAYS[way[1].decode() if way else "well"](peer)


@contextmanager
def misbehaving() -> Iterator[Misbehaving]:
    """Yield a running server."""
    engine, ready, loop = Misbehaving(), threading.Event(), asyncio.new_event_loop()
    ended: asyncio.Future[None] = loop.create_future()

    async def run() -> None:
        async with await asyncio.start_server(engine.take, "127.0.0.1", 0) as server:
            engine.start(server)
            ready.set()
            await ended
            await engine.end()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(TIMEOUT_S)
    try:
        yield engine
    finally:
        loop.call_soon_threadsafe(ended.set_result, None)
        thread.join(TIMEOUT_S)
        loop.close()
