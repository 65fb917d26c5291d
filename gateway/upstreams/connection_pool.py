"""The connections to one engine: those that are idle are used again, the youngest first."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentspec.gateway.errors import UnreachableError, UpstreamDownError
from agentspec.gateway.upstreams.connection import UpstreamConnection

# below the 5 s after which common servers close an idle connection: never use one they just closed
KEEPALIVE_S = 2.0
MOST_IDLE = 1024


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request as bytes. ``head`` ends with the empty line."""

    head: bytes
    body: bytes
    is_head: bool = False


class ConnectionPool:
    """As many connections to the server at ``root`` as there are requests at a time.

    Args:
        root: ``http://host:port`` or ``https://...``; what comes after is left to the requests.
        connect_s: seconds until a new connection must stand.
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
        """The connection on which the answer to ``request`` comes; its head is there.

        To be given back by ``put_back`` or ended by its ``abort``.

        Raises:
            UpstreamDownError, UpstreamTimeoutError
        """
        if (connection := self._youngest()) is not None:
            try:
                return await self._sent(connection, request)
            except UpstreamDownError:
                if connection.has_answered:
                    raise
                # it was closed in the moment in which we used it: that says nothing of the engine. Once only,
                # and on a new connection: it may be this request that kills what it is sent to
        return await self._sent(await self._connect(), request)

    def put_back(self, connection: UpstreamConnection) -> None:
        """Keep it for the next request if it can be used again; else end it."""
        if not connection.is_reusable or len(self._idle) >= MOST_IDLE:
            connection.abort()
            return
        now_s = asyncio.get_running_loop().time()
        self._idle.append((now_s, connection))
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._reap)

    def close(self) -> None:
        """End the idle ones."""
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
