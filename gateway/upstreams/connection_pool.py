"""A pool of keep-alive connections to one engine, which reuses the most recently used one first."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentspec.gateway.errors import UnreachableError, UpstreamDownError
from agentspec.gateway.upstreams.connection import UpstreamConnection

# common servers close an idle connection after 5 s: stay below, so as not to use one that was just closed
KEEPALIVE_S = 2.0
MOST_IDLE = 1024


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request as bytes. ``head`` includes the empty line at its end."""

    head: bytes
    body: bytes
    is_head: bool = False


class ConnectionPool:
    """A pool of connections to the server at ``root``, one for each concurrent request.

    Args:
        root: ``http://host:port`` or ``https://...``; any path is ignored.
        connect_s: time-out for a new connection, in seconds.
        first_byte_s, idle_s: as in :meth:`UpstreamConnection.send`.
    """

    def __init__(self, root: str, *, connect_s: float, first_byte_s: float, idle_s: float) -> None:
        parts = urlsplit(root)
        assert parts.hostname is not None
        self._root = root
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_s = connect_s
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._idle: deque[tuple[float, UpstreamConnection]] = deque()
        self._reaper: asyncio.TimerHandle | None = None

    async def send(self, request: UpstreamRequest) -> UpstreamConnection:
        """Send one request and return its connection, with the head of the response received.

        The caller must release the connection with ``put_back`` or ``UpstreamConnection.abort``.

        Raises:
            UpstreamDownError, UpstreamTimeoutError
        """
        if (connection := self._youngest()) is not None:
            try:
                return await self._sent(connection, request)
            except UpstreamDownError:
                if connection.has_answered:
                    raise
                # the idle connection was closed just as it was used, which is not a failure of the engine.
                # Retry only once, on a new connection: the request itself may crash the engine
        return await self._sent(await self._connect(), request)

    async def fetch(self, request: UpstreamRequest, most_bytes: int) -> tuple[int, bytes]:
        """Send one request and return the status and the body of its response.

        A body stops growing at ``most_bytes``. Raises as ``send`` does.
        """
        connection = await self.send(request)
        try:
            body = bytearray()
            while len(body) < most_bytes and (part := await connection.read()):
                body += part
            return connection.status, bytes(body)
        finally:
            self.put_back(connection)

    def put_back(self, connection: UpstreamConnection) -> None:
        """Keep ``connection`` for the next request if it is reusable; else close it."""
        if not connection.is_reusable or len(self._idle) >= MOST_IDLE:
            connection.abort()
            return
        now_s = asyncio.get_running_loop().time()
        self._idle.append((now_s, connection))
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._reap)

    def close(self) -> None:
        """Close the idle connections."""
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        while self._idle:
            self._idle.pop()[1].abort()

    async def _sent(self, connection: UpstreamConnection, request: UpstreamRequest) -> UpstreamConnection:
        try:
            await connection.send(
                request.head,
                request.body,
                is_head=request.is_head,
                first_byte_s=self._first_byte_s,
                idle_s=self._idle_s,
            )
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self._root), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise UnreachableError(
                f"the engine at {self._root} did not take the connection in time: {self._connect_s:g} s"
            ) from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise UnreachableError(f"the engine at {self._root} can't be reached: {reason}") from error
        return connection

    def _youngest(self) -> UpstreamConnection | None:
        oldest_s = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle:
            since_s, connection = self._idle.pop()
            if since_s >= oldest_s and connection.is_reusable:
                return connection
            connection.abort()
        return None

    def _reap(self) -> None:
        self._reaper = None
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0][0] <= loop.time() - KEEPALIVE_S:
            self._idle.popleft()[1].abort()
        if self._idle:
            self._reaper = loop.call_later(KEEPALIVE_S, self._reap)
