"""The server's end of an HTTP/1.1 connection, without limits: those are in ``protocol``.

httptools parses the bytes of requests, ``request_cycle`` writes the responses. The requests of a pipeline are
answered one after another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Scope

from agentspec.gateway.http.api_response import RawHeader
from agentspec.gateway.http.request_cycle import FlowControl, Http11Cycle

KEEPALIVE_S = 30  # until an idle connection is closed
MOST_UNREAD_BYTES = 1 << 16  # of a body; beyond this, reading pauses until the application reads


class ServerState(Protocol):
    """The part of uvicorn's state of a server that a connection uses.

    Attributes:
        connections: open ones. At the end, the server calls ``shutdown`` of each and waits for all.
        tasks: those of requests. At the end, the server waits for them.
        default_headers: headers of every response; the server renews the date.
    """

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[RawHeader]


class ClientConnection(asyncio.Protocol):
    """One connection to a client. ``app`` answers its requests.

    Pipelined requests wait, and reading pauses, until the responses before them are complete. A client that
    closes its sending half has disconnected. Subclasses receive the bytes and pass them to ``feed``.

    Args:
        app_state: state of the application's lifespan; each request gets a copy.

    Attributes:
        url, headers: those of the request that is being parsed.
        has_begun: True from a request's first byte to its end.
        cycle: the last request with a complete head.
        answered: the last request that was passed to the application.
        pipeline: requests that wait for the response before theirs.
    """

    def __init__(self, app: ASGIApp, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self.loop = asyncio.get_running_loop()
        self.url = b""
        self.has_begun = False
        self.headers: list[RawHeader] = []
        self.cycle: Http11Cycle | None = None
        self.answered: Http11Cycle | None = None
        self.pipeline: deque[Http11Cycle] = deque()
        self._app = app
        self._app_state = app_state
        self._server_state = server_state
        self._keepalive: asyncio.TimerHandle | None = None
        self._expects_continue = False
        self._framing = b""  # header with the length of the body behind an offered upgrade
        self._is_resuming = False
        self._parser = _new_parser(self)

    @property
    def is_answering(self) -> bool:
        """True until the response to the last request is complete."""
        return self.cycle is not None and not self.cycle.is_complete

    @property
    def is_deaf(self) -> bool:
        """True while the parser reads no request of the client's, or one that will get no response."""
        return self._is_resuming or self.transport.is_closing()

    @property
    def has_only_head(self) -> bool:
        """True if the parser reports the end of a request before its body, as it does for an upgrade."""
        return bool(self._framing) and self._parser.should_upgrade()

    def feed(self, data: bytes) -> None:
        """Parse ``data``. A request that offers an upgrade, as Java's client does, stays HTTP/1.1.

        Raises:
            httptools.HttpParserError: the bytes are not HTTP/1.1, or a callback failed.
        """
        self.stop_keepalive()
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._resume()
            else:
                return

    def shutdown(self) -> None:
        """Close the connection, after the response in progress if there is one. uvicorn calls this."""
        if self.cycle is None or self.cycle.is_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def stop_keepalive(self) -> None:
        """Cancel the timer of an idle connection."""
        if self._keepalive is not None:
            self._keepalive.cancel()
            self._keepalive = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and the addresses of both ends."""
        self.transport = cast(asyncio.Transport, transport)
        self.flow = FlowControl(self.transport)
        self._server = _address(transport.get_extra_info("sockname"))
        self._client = _address(transport.get_extra_info("peername"))
        self._server_state.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request of a client that disconnected. Those behind it get no response."""
        self._server_state.connections.discard(self)
        self.stop_keepalive()
        self.pipeline.clear()
        if self.answered is not None:
            self.answered.lose()
        self.flow.resume_writing()
        del self._parser  # parser and connection would keep each other alive

    def pause_writing(self) -> None:
        """Let the response wait: the client does not keep up."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Let the response continue."""
        self.flow.resume_writing()

    # httptools

    def on_message_begin(self) -> None:
        """Handle a request's first byte."""
        self.has_begun = True
        self.url, self.headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        """Handle the next part of the request target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer, which is ignored."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Answer the request with this complete head now, or after those before it."""
        is_next = not self.is_answering
        self.cycle = self._new_cycle()
        self._framing = _framing(self.headers) if self._parser.should_upgrade() else b""
        self.headers = []
        if is_next:
            self._answer(self.cycle)
        else:
            self.pipeline.append(self.cycle)
            self.flow.hold_reading()

    def on_body(self, body: bytes) -> None:
        """Keep the next part of the body for the application. Drop it if the response is complete."""
        cycle = self.cycle
        if cycle is None or cycle.is_complete:
            return
        cycle.body += body
        if len(cycle.body) > MOST_UNREAD_BYTES:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        self.has_begun = False
        cycle = self.cycle
        if cycle is None or cycle.is_complete:
            return
        cycle.more_body = False
        cycle.message_event.set()

    # request_cycle

    def on_response_complete(self) -> None:
        """Answer the next request, or wait for one."""
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle = self.pipeline.popleft()
            if not self.pipeline:
                self.flow.release_reading()
            self._answer(cycle)
            return
        self.flow.resume_reading()
        if not self.has_begun:
            self._keepalive = self.loop.call_later(KEEPALIVE_S, self.transport.close)

    def _answer(self, cycle: Http11Cycle) -> None:
        self.answered = cycle
        task = self.loop.create_task(cycle.run_asgi(self._app))
        task.add_done_callback(self._server_state.tasks.discard)
        self._server_state.tasks.add(task)

    def _new_cycle(self) -> Http11Cycle:
        url, version = httptools.parse_url(self.url), self._parser.get_http_version()
        path = url.path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "method": self._parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self.headers,
            "state": self._app_state.copy(),
        }
        return Http11Cycle(
            scope,
            self.transport,
            self.flow,
            self._server_state.default_headers,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=version != "1.0" and self._expects_continue,
            is_dated=version == "1.0",
            on_end=self.on_response_complete,
        )

    def _resume(self) -> None:
        """Continue after the head with a new parser: the old one reads no body after an upgrade offer."""
        self._parser = _new_parser(self)
        if self._framing:
            self._is_resuming = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n")
            self._is_resuming = False


def _new_parser(connection: ClientConnection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    # a pipeline may go on after a request with ``Connection: close``, which still gets its response
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _framing(headers: Iterable[RawHeader]) -> bytes:
    """Return the header that gives the body's length or encoding; empty without a body."""
    return b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
    )


def _address(name: object) -> tuple[str, int] | None:
    """Return host and port of a TCP socket's name, of which IPv6 has more; None for other sockets."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
