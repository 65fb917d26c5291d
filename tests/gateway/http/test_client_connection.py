from __future__ import annotations

import ast
import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from agentspec.gateway.http import client_connection, protocol
from agentspec.gateway.http.client_connection import MOST_UNREAD_BYTES
from agentspec.gateway.http.flow_control import FlowControl
from tests.gateway.support.live import TIMEOUT_S, GatewayUrl, serving_app

HEAD = b"POST /%b HTTP/1.1\r\nhost: x\r\n%b\r\n"
LARGEST_READ_BYTES = 1 << 18  # asyncio's and uvloop's
GATEWAY = Path(protocol.__file__).resolve().parents[1]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path, the query and the whole body, except that /deaf does not read its body."""
    if scope["type"] == "lifespan":
        return
    body, more = b"", scope["path"] != "/deaf"
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    text = scope["path"].encode() + b"?" + scope["query_string"] + b" " + body
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-raw", scope["raw_path"])]})
    await send({"type": "http.response.body", "body": text, "more_body": False})


@pytest.fixture(scope="module")
def root() -> Iterator[GatewayUrl]:
    with serving_app(echo) as root:
        yield root


def connected(root: str) -> socket.socket:
    host, _, port = root.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def answers(connection: socket.socket, last: bytes) -> bytes:
    """Return all bytes up to ``last``."""
    got = b""
    while last not in got:
        got += connection.recv(65536) or pytest.fail(f"closed after {got!r}")
    return got


def sized(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    return HEAD % (path, more + b"content-length: %d\r\n" % len(body)) + body


def test_a_pipeline_is_answered_in_its_order(root: GatewayUrl) -> None:
    with connected(root) as connection:
        connection.sendall(b"".join(sized(b"n%d" % n, b"body %d" % n) for n in range(5)))
        got = answers(connection, b"body 4")
        connection.sendall(sized(b"again", b"body 5"))
        got += answers(connection, b"body 5")
    places = [got.index(b"body %d" % n) for n in range(6)]
    assert places == sorted(places)
    assert got.count(b"HTTP/1.1 200 OK\r\n") == 6


def test_a_request_one_byte_at_a_time(root: GatewayUrl) -> None:
    head = HEAD % (b"a%20b/%C3%A9?q=1", b"transfer-encoding: chunked\r\n")
    whole = head + b"3\r\nabc\r\n2\r\nde\r\n0\r\nt: x\r\n\r\n"
    with connected(root) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in whole:
            connection.sendall(bytes([byte]))
        got = answers(connection, b"abcde")
    assert "/a b/é?q=1 abcde".encode() in got
    assert b"x-raw: /a%20b/%C3%A9\r\n" in got


@pytest.mark.parametrize("path", [b"reads", b"deaf"])
def test_a_client_that_waits_for_100(root: GatewayUrl, path: bytes) -> None:
    """It gets a 100 when the application reads, and no 100 if it does not."""
    with connected(root) as connection:
        connection.sendall(HEAD % (path, b"expect: 100-continue\r\ncontent-length: 2\r\n"))
        if path == b"reads":
            assert answers(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b"hi")
        got = answers(connection, b"/%b? " % path)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"connection: close" in got) == (path == b"deaf")


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "KEEPALIVE_S", 0.01)
    with serving_app(echo) as root, connected(root) as connection:
        connection.sendall(sized(b"one", b"x"))
        answers(connection, b"/one? x")
        assert connection.recv(1) == b""


def test_a_body_that_is_not_read_stays_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading pauses after ``MOST_UNREAD_BYTES`` and one read more, until the application reads."""
    is_paused, most = asyncio.Event(), []
    pause = FlowControl.pause_reading

    def pause_reading(self: FlowControl) -> None:
        pause(self)
        is_paused.set()

    async def count_late(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await is_paused.wait()
            message = await receive()
            most.append(len(message["body"]))
            num_bytes = most[0]
            while message["more_body"]:
                message = await receive()
                num_bytes += len(message["body"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"got %d" % num_bytes})

    monkeypatch.setattr(FlowControl, "pause_reading", pause_reading)
    with serving_app(count_late) as root, connected(root) as connection:
        connection.sendall(sized(b"big", b"x" * (16 << 20)))
        answers(connection, b"got %d" % (16 << 20))
    assert MOST_UNREAD_BYTES < most[0] <= MOST_UNREAD_BYTES + LARGEST_READ_BYTES


def test_nothing_private_of_uvicorn_is_used() -> None:
    """Only the server, its state and its configuration, which its documentation describes."""
    names = set()
    for file in GATEWAY.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "uvicorn":
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names.update(one.name for one in node.names if one.name.split(".")[0] == "uvicorn")
    assert names == {"uvicorn", "uvicorn.server"}
