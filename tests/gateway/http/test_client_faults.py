"""Clients that violate HTTP, are slow or hostile: clear errors, closed connections, no effect on others."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import psutil
import pytest

from agentspec.gateway import (
    EmbeddedUpstream,
    Fleet,
    FleetSettings,
    GatewaySettings,
    GracefulShutdown,
    RuntimeConfig,
    UpstreamSettings,
    create_app,
)
from tests.gateway.support.leaving import eventually, until_closed
from tests.gateway.support.live import (
    TIMEOUT_S,
    GatewayUrl,
    chat_body,
    post,
    serving,
    serving_app,
    serving_engine,
    serving_proxy,
)
from tests.gateway.support.misbehaving import Misbehaving, misbehaving
from tests.gateway.support.scripted import ScriptedEngine

LIMITS = GatewaySettings(head_s=TIMEOUT_S, body_s=TIMEOUT_S, head_limit_bytes=8192, max_headers=32)
HASTY = GatewaySettings(head_s=0.3, body_s=0.5, unread_s=1, head_limit_bytes=8192, max_headers=32)
BODY = json.dumps(chat_body()).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
WHOLE = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def root() -> Iterator[GatewayUrl]:
    """Yield a gateway with long time limits: a test's thread may be delayed within a request."""
    yield from without_connections_left(LIMITS)


@pytest.fixture(scope="module")
def hasty() -> Iterator[GatewayUrl]:
    """Yield a gateway with short time limits, for tests that exceed them."""
    yield from without_connections_left(HASTY)


def without_connections_left(limits: GatewaySettings) -> Iterator[GatewayUrl]:
    """Yield a gateway and check that it has no open connection at the end."""
    with serving_engine(ScriptedEngine(), settings=limits) as root:
        yield root
        port = httpx.URL(root).port
        assert eventually(
            lambda: (
                not any(
                    one.laddr and one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED
                    for one in psutil.Process().net_connections("tcp")
                )
            )
        )


@contextmanager
def connected(root: GatewayUrl, start: bytes = b"") -> Iterator[socket.socket]:
    """Yield a connection that has received ``start`` before the gateway accepts it."""
    url = httpx.URL(root)
    with ExitStack() as while_paused:
        while_paused.enter_context(root.paused())
        with socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S) as connection:
            connection.sendall(start)
            while_paused.close()
            yield connection


def flooded(connection: socket.socket, part: bytes) -> bytes:
    """Send ``part`` repeatedly and return the first data received."""
    connection.settimeout(0.01)
    while True:
        with suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
            connection.sendall(part)
        with suppress(TimeoutError):
            answer = connection.recv(65536)
            break
    connection.settimeout(TIMEOUT_S)
    return answer


def error_of(answer: bytes) -> tuple[int, str]:
    """Return status and code of the last response in these bytes, which must close the connection."""
    head, _, body = answer.rpartition(b"\r\n\r\n")
    head = head[head.rfind(b"HTTP/1.1 ") :]
    assert b"connection: close" in head
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


def said(root: GatewayUrl, start: bytes = b"", *parts: bytes) -> bytes:
    with connected(root, start) as connection:
        for part in parts:
            connection.sendall(part)
        return until_closed(connection)


@pytest.mark.parametrize("start", [b"P", b"POST /v1", POST, POST + b"content-length: 5\r\n"])
def test_half_a_head(hasty: GatewayUrl, start: bytes) -> None:
    assert error_of(said(hasty, start)) == (408, "request_timeout")


def drip(connection: socket.socket, drop: bytes) -> bytes:
    """Send ``drop`` periodically while it is accepted, and return the response."""
    connection.settimeout(0.05)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            connection.sendall(drop)
            return until_closed(connection)
        except TimeoutError:
            continue
        except OSError:
            return b""
    raise TimeoutError


@pytest.mark.parametrize("start", [b"", WHOLE[:20], POST])
def test_a_head_drop_by_drop(hasty: GatewayUrl, start: bytes) -> None:
    with connected(hasty, start) as connection:
        drip(connection, b"x: y\r\n" if start == POST else b"a" if start else b"\r\n")


@pytest.mark.parametrize("drop", [b"\r\n", b"G"])
def test_a_second_request_drop_by_drop(drop: bytes) -> None:
    runtime, shutdown = RuntimeConfig(limits=LIMITS), GracefulShutdown()
    app = create_app(EmbeddedUpstream(ScriptedEngine()), runtime=runtime, shutdown=shutdown)
    with serving_app(app, shutdown, runtime=runtime) as root, connected(root) as connection:
        connection.sendall(WHOLE)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        runtime.limits = HASTY
        drip(connection, drop)


def test_whoever_says_nothing_is_not_kept(hasty: GatewayUrl) -> None:
    assert said(hasty) == b""


def test_the_rest_of_a_body_that_nobody_wants(hasty: GatewayUrl) -> None:
    """The request was refused immediately. Its body may not continue forever."""
    start = b"POST /v1/nothing HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with connected(hasty, start + b"POST") as connection:
        drip(connection, b"1\r\nx\r\n")


@pytest.mark.parametrize(
    "head",
    [
        POST + b"x-a: b\r\n" * 33,
        POST + b"x-long: " + b"x" * 9000 + b"\r\n",
        POST + b"x-long: " + b"x" * 9000,
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n",
        POST + b"x" * 9000,
    ],
    ids=["many", "long", "unfinished", "url", "name"],
)
def test_too_large_a_head(root: GatewayUrl, head: bytes) -> None:
    assert error_of(said(root, head, b"\r\n")) == (431, "head_too_large")


def test_an_endless_head_is_told_why(root: GatewayUrl) -> None:
    """The response arrives although the client is still sending."""
    with connected(root) as connection:
        connection.sendall(POST)
        answer = flooded(connection, b"x-more: 1234567890\r\n" * 1000) + until_closed(connection)
    assert error_of(answer) == (431, "head_too_large")


@pytest.mark.parametrize("end", [b"0\r\nx: ", b"2;"])
def test_endless_trailers_and_extensions(root: GatewayUrl, end: bytes) -> None:
    """Data received together with the body is accepted, later data is not."""
    start = POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n" + end
    with connected(root) as connection:
        connection.sendall(start)
        answer = flooded(connection, b"x" * 100_000) + until_closed(connection)
    assert error_of(answer) == (431, "head_too_large")


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\n\r\n",
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}   ",
        POST + b"content-length: +5\r\n\r\n{}   ",
        POST + b"content-length: 5, 5\r\n\r\n{}   ",
        POST + b"content-length : 2\r\n\r\n{}",
        POST + b"x y: 2\r\n\r\n",
        POST + b"x\x00y: 2\r\n\r\n",
        POST + b"x-a: b\x00c\r\n\r\n",
        POST + b"x-a: b\r\n folded: c\r\n\r\n",
        POST + b"x-a: b\rx-b: c\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n11111111111111111\r\n{}\r\n0\r\n\r\n",
        POST + b"content-length: 99999999999999999999999\r\n\r\n{}",
    ],
)
def test_what_is_no_request(root: GatewayUrl, request_: bytes) -> None:
    assert error_of(said(root, request_)) == (400, "invalid_http")
    assert post(root, chat_body()).status_code == 200


@pytest.mark.parametrize("length", [len(BODY) + 5, 10_000_000])
def test_half_a_body(hasty: GatewayUrl, length: int) -> None:
    start = POST + b"content-length: %d\r\n\r\n" % length + BODY
    with connected(hasty, start) as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, json.load(answer)["error"]["code"]) == (408, "request_timeout")


@pytest.mark.parametrize(
    "rest", [b"content-length: 5\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n2;" + b"x" * 9000]
)
def test_a_body_that_does_not_begin(hasty: GatewayUrl, rest: bytes) -> None:
    with connected(hasty, POST + rest) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_a_body_without_end(hasty: GatewayUrl) -> None:
    with connected(hasty, POST + b"transfer-encoding: chunked\r\n\r\n") as connection:
        answer = flooded(connection, b"1\r\n \r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_trailers_are_no_headers(root: GatewayUrl) -> None:
    with connected(root) as connection:
        connection.sendall(
            POST
            + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(BODY)
            + BODY
            + b"\r\n0\r\nx-agentspec-stage: late\r\nauthorization: Bearer late\r\n\r\n"
        )
        assert b"x-agentspec-stage: default\r\n" in until_closed(connection)


def test_requests_one_upon_the_other(root: GatewayUrl) -> None:
    """Pipelined requests get their responses in order."""
    asked = [
        POST + b"x-request-id: r%d\r\ncontent-length: %d\r\n\r\n" % (number, len(BODY)) + BODY
        for number in range(5)
    ]
    last = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: r5\r\n\r\n"
    answer = said(root, b"".join(asked) + last)
    ids = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")]
    assert ids == [b"x-request-id: r%d" % number for number in range(6)]


def test_garbage_after_a_request_does_not_end_up_in_its_answer() -> None:
    with serving_engine(ScriptedEngine(is_endless=True)) as root, connected(root) as connection:
        body = json.dumps(chat_body(stream=True)).encode()
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\x00\x01 garbage\r\n\r\n")
        assert b"HTTP/1.1" not in until_closed(connection)


@pytest.mark.parametrize(
    "upgrade", [b"connection: upgrade\r\nupgrade: websocket\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n"]
)
def test_nothing_else_is_spoken_here(root: GatewayUrl, upgrade: bytes) -> None:
    """The upgrade is ignored: the request, its body and the next request are processed."""
    asked = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n"
    whole = POST + upgrade + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    chunked = POST + upgrade + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    last = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    answer = said(root, asked + whole + chunked + asked + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 5
    with connected(root) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in (whole[:-5], whole[-5:] + chunked[:-9], chunked[-9:] + last):
            connection.sendall(part)
            time.sleep(0.02)  # so that the parts usually arrive separately
        assert until_closed(connection).count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize("asked", [b"GET /\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nconnection: close\r\n\r\n"])
def test_forms_of_old(root: GatewayUrl, asked: bytes) -> None:
    assert error_of(said(root, asked)) == (404, "unknown_url")


def test_no_tunnels(root: GatewayUrl) -> None:
    answer = said(root, b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert error_of(answer)[0] == 400


@pytest.mark.parametrize("host", [b"[", b"a/b?c#", b"", b"x\r\nhost: y"])
@pytest.mark.parametrize("path", [b"/agentspec/nothing", b"/agentspec/stages/%ff%00", b"/v1/nothing"])
def test_a_host_that_is_none(root: GatewayUrl, host: bytes, path: bytes) -> None:
    answer = said(root, b"GET " + path + b" HTTP/1.1\r\nconnection: close\r\nhost: " + host + b"\r\n\r\n")
    assert error_of(answer)[0] in (404, 405)


@pytest.mark.parametrize("depth", [129, 300, 600, 900, 950, 990, 5000, 200_000])
@pytest.mark.parametrize("fields", [b'"x":', b'"vllm_xargs": {"a": 1}, "x":', b'"vllm_xargs":'])
def test_a_deep_body(root: GatewayUrl, depth: int, fields: bytes) -> None:
    answer = post(root, b"{%s%s%s}" % (fields, b"[" * depth, b"]" * depth))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_a_body_that_is_deep_enough(root: GatewayUrl) -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"properties": schema}
    assert post(root, chat_body(metadata=schema)).status_code == 200


@pytest.fixture
def engine() -> Iterator[Misbehaving]:
    with misbehaving() as engine:
        yield engine


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_reset_before_and_after_the_first_byte(engine: Misbehaving) -> None:
    with serving_proxy(engine.url) as root:
        for way in (b"hangs", b"streams for ever"):
            engine.has_request.clear()
            engine.has_lost.clear()
            with connected(root) as connection:
                connection.sendall(WHOLE.replace(b"host: x", b"x-way: " + way))
                assert engine.has_request.wait(TIMEOUT_S)
                if way != b"hangs":
                    assert connection.recv(1)
                reset(connection)
            assert engine.has_lost.wait(TIMEOUT_S)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux ends such connections")
def test_a_client_that_never_reads_is_dropped(engine: Misbehaving) -> None:
    fleet = Fleet(FleetSettings(upstreams=(UpstreamSettings(url=engine.url),)))
    start = WHOLE.replace(b"host: x", b"x-way: streams for ever")
    with serving(fleet, settings=HASTY) as root, connected(root, start):
        assert engine.has_lost.wait(TIMEOUT_S)
