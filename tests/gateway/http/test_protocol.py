"""One connection to the gateway's own HTTP server: order, body, time-outs and flow control."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.gateway import GatewaySettings, RuntimeConfig
from agentspec.gateway.http import client_connection
from agentspec.gateway.http.client_connection import MOST_UNREAD_BYTES
from agentspec.gateway.http.context import context_of
from tests.gateway.support.leaving import connected, until_closed
from tests.gateway.support.live import TIMEOUT_S, serving_app

READ_BYTES = 256 << 10  # the most that an event loop reads in one call
LAST = b"connection: close\r\n"

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


def app_of(handle: Handler) -> ASGIApp:
    """Return an application that calls ``handle`` for each request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await handle(scope, receive, send)
            return
        scope["state"]["shared"] = ["lifespan"]
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return app


async def respond(send: Send, text: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the path and the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await respond(send, b"%b=%b;" % (scope["path"].encode(), body))


def get(path: bytes, *headers: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (path, b"".join(headers))


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n%b\r\n" % (path, len(body), b"".join(headers)) + body


def bodies(answer: bytes) -> bytes:
    """Return the bodies of ``echo`` in these responses."""
    return b"".join(part.rpartition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 "))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bodies_of_both_kinds_in_parts_of_any_size(size: int) -> None:
    text = bytes(range(97, 123)) * 40
    chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in (text[:1], text[1:500], text[500:]))
    chunked = b"POST /b HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunks + b"0\r\nx: trailer\r\n\r\n"
    data = post(b"/a", text) + chunked + post(b"/c", b"") + post(b"/d", text, LAST)
    with serving_app(app_of(echo)) as root, connected(root) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        answer = until_closed(connection)
    assert bodies(answer) == b"/a=%b;/b=%b;/c=;/d=%b;" % (text, text, text)


def test_a_request_in_a_pipeline_starts_after_the_response_before_it() -> None:
    started: list[str] = []
    has_started, may_end = threading.Event(), threading.Event()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        started.append(scope["path"])
        has_started.set()
        if scope["path"] == "/0":
            await asyncio.to_thread(may_end.wait, TIMEOUT_S)
            assert started == ["/0"]
        await echo(scope, receive, send)

    data = b"".join(post(b"/%d" % number, b"x" * number) for number in range(5)) + get(b"/5", LAST)
    with serving_app(app_of(handle)) as root, connected(root) as connection:
        connection.sendall(data)
        assert has_started.wait(TIMEOUT_S)
        may_end.set()
        answer = until_closed(connection)
    assert bodies(answer) == b"/0=;/1=x;/2=xx;/3=xxx;/4=xxxx;/5=;"
    assert started == [f"/{number}" for number in range(6)]


def test_a_long_pipeline_waits_in_the_clients_memory(reads: list[int]) -> None:
    """Neither a response nor a handler that reads its body lets more requests in."""
    request = post(b"/", b"x", b"x-long: %b\r\n" % (b"x" * 8000))
    num_requests, most_waiting = 500, 0
    num_started = 0

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_started, most_waiting
        num_started += 1
        for _ in range(3):  # the event loop may read
            await asyncio.sleep(0)
        most_waiting = max(most_waiting, sum(reads) - num_started * len(request))
        await echo(scope, receive, send)

    with serving_app(app_of(handle)) as root, connected(root) as connection:
        data = request * num_requests + get(b"/end", LAST)
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        answer = until_closed(connection)
        sending.join(TIMEOUT_S)
    assert bodies(answer) == b"/=x;" * num_requests + b"/end=;"
    assert most_waiting <= READ_BYTES + len(request)


@pytest.mark.parametrize("is_first_left", [True, False])
def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch, is_first_left: bool) -> None:
    monkeypatch.setattr(client_connection, "KEEPALIVE_S", 0.05)
    with serving_app(app_of(echo)) as root, connected(root) as connection:
        connection.sendall(get(b"/a") if is_first_left else get(b"/a") + get(b"/b"))
        answer = until_closed(connection)
    assert bodies(answer) == (b"/a=;" if is_first_left else b"/a=;/b=;")
    assert b"connection: close" not in answer


def test_a_connection_with_half_a_head_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has its own time limit, with an error response."""
    monkeypatch.setattr(client_connection, "KEEPALIVE_S", 0.05)
    runtime = RuntimeConfig(limits=GatewaySettings(head_s=0.3))
    with serving_app(app_of(echo), runtime=runtime) as root, ExitStack() as clients:
        with root.paused():  # the time limit starts after all data was sent
            connection = clients.enter_context(connected(root))
            connection.sendall(get(b"/a") + b"GET /b HT")
        answer = until_closed(connection)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"408"]


def test_a_client_waits_for_permission_to_send_its_body() -> None:
    head = b"POST /a HTTP/1.1\r\ncontent-length: 2\r\nExpect: 100-Continue\r\n\r\n"
    with serving_app(app_of(echo)) as root, connected(root) as connection:
        connection.sendall(get(b"/first") + head)
        got = b""
        while not got.endswith(b"100 Continue\r\n\r\n"):
            got += connection.recv(65536) or pytest.fail(f"no permission: {got!r}")
        assert b"/first=;HTTP/1.1 100 Continue" in got
        connection.sendall(b"hi" + get(b"/b", LAST))
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert bodies(answer) == b"/a=hi;/b=;"


def test_http_1_0_knows_no_permission() -> None:
    with serving_app(app_of(echo)) as root, connected(root) as connection:
        connection.sendall(b"POST /a HTTP/1.0\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\nhi")
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_bad_bytes_after_a_response_get_an_error() -> None:
    with serving_app(app_of(echo)) as root, connected(root) as connection:
        connection.sendall(get(b"/a"))
        assert connection.recv(65536).endswith(b"/a=;")
        connection.sendall(b"bad bytes\r\n\r\n")
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b'"code":"invalid_http"' in answer


def test_an_upgrade_is_an_ordinary_request() -> None:
    """RFC 9110 lets a server ignore the offer."""
    upgrade = b"connection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    with serving_app(app_of(echo)) as root, connected(root) as connection:
        connection.sendall(get(b"/a", upgrade) + post(b"/b", b"x", upgrade) + get(b"/c", LAST))
        answer = until_closed(connection)
    assert bodies(answer) == b"/a=;/b=x;/c=;"
    assert b"101" not in answer


@pytest.mark.parametrize("request_", [post(b"/", b"hi"), post(b"/", b"hi")[:-1]], ids=["whole", "half"])
def test_a_client_that_sends_no_more_has_disconnected(request_: bytes) -> None:
    messages: list[Any] = []
    has_started, has_ended = threading.Event(), threading.Event()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        has_started.set()
        messages.append(await receive())
        await respond(send, b"too late")
        has_ended.set()

    with serving_app(app_of(handle)) as root, connected(root) as connection:
        connection.sendall(request_)
        assert has_started.wait(TIMEOUT_S)
        connection.shutdown(socket.SHUT_WR)
        assert until_closed(connection) == b""
        assert has_ended.wait(TIMEOUT_S)
    assert [message["type"] for message in messages] == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("reads_on", [True, False], ids=["reads late", "resets"])
def test_an_application_waits_for_a_client_that_does_not_read(reads_on: bool) -> None:
    is_full, has_ended = threading.Event(), threading.Event()
    part, num_parts = b"x" * (1 << 20), 64  # more than the sockets' buffers hold

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        writer = context_of(scope).writer
        writer.start(200, [])
        for _ in range(num_parts):
            writer.write(part)
            if writer.is_full:
                is_full.set()
                await writer.drain()
        has_ended.set()
        writer.end()

    with serving_app(app_of(handle)) as root, connected(root) as connection:
        connection.sendall(get(b"/", LAST))
        assert is_full.wait(TIMEOUT_S)
        assert not has_ended.is_set()
        if reads_on:
            answer = until_closed(connection)
            assert answer.count(b"x") == num_parts * len(part)
            assert answer.endswith(b"0\r\n\r\n")
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        assert has_ended.wait(TIMEOUT_S)


def test_a_body_that_the_application_does_not_read_stays_with_the_client() -> None:
    text, largest = b"x" * (8 << 20), 0

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal largest
        num_bytes, more = 0, True
        while more:
            for _ in range(5):  # the event loop may read
                await asyncio.sleep(0)
            message = await receive()
            num_bytes, more = num_bytes + len(message["body"]), message["more_body"]
            largest = max(largest, len(message["body"]))
        await respond(send, b"%d" % num_bytes)

    with serving_app(app_of(handle)) as root, connected(root) as connection:
        connection.sendall(post(b"/", text, LAST))
        answer = until_closed(connection)
    assert answer.endswith(b"\r\n\r\n%d" % len(text))
    assert largest <= MOST_UNREAD_BYTES + READ_BYTES


def test_the_end_of_the_server_closes_idle_connections_and_waits_for_responses() -> None:
    has_started, may_end = threading.Event(), threading.Event()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            has_started.set()
            await asyncio.to_thread(may_end.wait, TIMEOUT_S)
        await echo(scope, receive, send)

    with ExitStack() as clients, ExitStack() as server:
        root = server.enter_context(serving_app(app_of(handle), grace_s=TIMEOUT_S))
        idle, busy = (clients.enter_context(connected(root)) for _ in range(2))
        idle.sendall(get(b"/a"))
        assert idle.recv(65536).endswith(b"/a=;")
        busy.sendall(get(b"/slow"))
        assert has_started.wait(TIMEOUT_S)
        ending = threading.Thread(target=server.close)
        ending.start()
        assert until_closed(idle) == b""
        may_end.set()
        answer = until_closed(busy)
        ending.join(TIMEOUT_S)
    assert answer.endswith(b"/slow=;")
    assert b"connection: close\r\n" in answer
