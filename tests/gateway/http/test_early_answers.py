"""Responses sent before the whole body has arrived: they reach the client, and the rest costs little."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from agentspec.gateway import ApiKeys, GatewaySettings
from agentspec.gateway.auth.api_keys import ApiKey, digest_of
from agentspec.gateway.http.protocol import UNKNOWN_CLIENT_BYTES
from tests.gateway.support.leaving import connected, until_closed
from tests.gateway.support.live import TIMEOUT_S, serving_engine
from tests.gateway.support.scripted import ScriptedEngine

LIMIT_BYTES = 64 << 10
SETTINGS = GatewaySettings(body_limit_bytes=LIMIT_BYTES, head_s=TIMEOUT_S)
READ_BYTES = 256 << 10  # the most that asyncio reads in one call
MOST_READ_BYTES = UNKNOWN_CLIENT_BYTES + 2 * READ_BYTES  # the first read includes the head
CHUNK = b"10000\r\n%b\r\n" % (b" " * 65536)
GOOD, USED_UP = b"authorization: Bearer good", b"authorization: Bearer used-up"
EARLY = {
    "401": (b"/v1/chat/completions", b"authorization: Bearer wrong"),
    "400": (b"/v1/chat/completions", b"no header: " + GOOD),  # not valid HTTP
    "403": (b"/v1/nothing", GOOD),
    "404": (b"/agentspec/nothing", GOOD),
    "413": (b"/v1/chat/completions", GOOD),
    "429": (b"/v1/chat/completions", USED_UP),
}


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """Yield a gateway. ``good`` has no limits, ``used-up`` may send one request a minute."""
    keys = ApiKeys([ApiKey(digest_of("good"), "a"), ApiKey(digest_of("used-up"), "b", requests_per_minute=1)])
    with serving_engine(ScriptedEngine(), settings=SETTINGS, keys=keys) as root:
        yield root


def request(path: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([b"POST %b HTTP/%b" % (path, version), b"host: x", *headers, b"", b""])


def answer_of(connection: socket.socket) -> bytes:
    """Return one response with a content length."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536) or pytest.fail(f"no whole head: {got!r}")
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(body) < length:
        body += connection.recv(65536) or pytest.fail(f"no whole body: {got!r}")
    assert body.startswith(b'{"error":{')
    assert len(body) == length
    return got


@pytest.mark.parametrize("num_bytes", [300_000, 6_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("status", EARLY)
@pytest.mark.parametrize("kind", ["close", "1.0", "keep-alive"])
def test_a_client_that_sends_all_and_then_reads(
    root: str, kind: str, status: str, is_chunked: bool, num_bytes: int
) -> None:
    path, key = EARLY[status]
    num_chunks = num_bytes // 65536
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % num_bytes
    body = CHUNK * num_chunks + b"0\r\n\r\n" if is_chunked else b" " * num_bytes
    version, hop = (b"1.0" if kind == "1.0" else b"1.1"), b"connection: close" if kind == "close" else b"x: y"
    if status == "429":  # its minute may be over
        httpx.get(f"{root}/v1/models", headers={"authorization": "Bearer used-up"})
    with connected(root) as connection:
        connection.sendall(request(path, key, framing, hop, version=version) + body)
        told = answer_of(connection).split()[1].decode()
        assert told == status or (status, told) == ("400", "431")  # too much body came with the head
        if kind == "keep-alive" and status != "400":
            connection.sendall(request(b"/agentspec/nothing", GOOD, b"content-length: 0"))
            assert answer_of(connection).startswith(b"HTTP/1.1 404 ")
        else:
            assert until_closed(connection) == b""


def send_until_cut(connection: socket.socket) -> None:
    """Send more than gateway and kernel accept. Socket buffers grow to 36 MiB."""
    num_sent = 0
    with suppress(ConnectionError):
        while num_sent < 1 << 30:
            num_sent += connection.send(CHUNK)
    assert num_sent < 1 << 30, "it was never cut"


@pytest.mark.parametrize("hop", [b"connection: close", b"x: y"])
def test_an_unknown_client_that_goes_on_sending_is_cut(root: str, reads: list[int], hop: bytes) -> None:
    path, key = EARLY["401"]
    with connected(root) as connection:
        connection.sendall(request(path, key, hop, b"content-length: 99999999999"))
        send_until_cut(connection)
    assert UNKNOWN_CLIENT_BYTES < sum(reads) <= MOST_READ_BYTES


def test_bytes_that_are_no_request_are_cut_too(root: str, reads: list[int]) -> None:
    with connected(root) as connection:
        connection.sendall(b"GET / HTTP/9.9\r\n\r\n")
        send_until_cut(connection)
    assert UNKNOWN_CLIENT_BYTES < sum(reads) <= MOST_READ_BYTES


def test_chunks_over_the_limit_are_refused_when_they_pass_it(root: str) -> None:
    """The end of the body is never sent."""
    with connected(root) as connection:
        connection.sendall(request(b"/v1/chat/completions", GOOD, b"transfer-encoding: chunked") + CHUNK * 2)
        assert answer_of(connection).startswith(b"HTTP/1.1 413 ")


def test_a_bad_chunk_after_an_answer_gets_no_second_one(root: str) -> None:
    path, key = EARLY["401"]
    with connected(root) as connection:
        connection.sendall(request(path, key, b"transfer-encoding: chunked") + CHUNK)
        assert answer_of(connection).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"no chunk\r\n" + b" " * 300_000)
        assert until_closed(connection) == b""


def test_a_request_behind_the_last_one_of_a_connection_is_not_answered(root: str) -> None:
    path, key = EARLY["401"]
    first = request(path, key, b"connection: close", b"content-length: 300000")
    with connected(root) as connection:
        connection.sendall(first)
        answer_of(connection)
        connection.sendall(b" " * 300_000 + request(b"/agentspec/nothing", GOOD, b"content-length: 0"))
        assert until_closed(connection) == b""


def test_a_body_that_waits_for_a_word_is_not_taken_for_a_request(root: str) -> None:
    """The client may omit the body. Later data would be ambiguous, so the connection is closed."""
    path, key = EARLY["401"]
    with connected(root) as connection:
        connection.sendall(request(path, key, b"content-length: 1000000", b"expect: 100-continue"))
        answer = answer_of(connection)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close\r\n" in answer
        assert until_closed(connection) == b""


def test_a_client_that_still_sends_does_not_hold_up_the_end() -> None:
    keys = ApiKeys.parse(["good=a"])
    with (
        serving_engine(ScriptedEngine(), settings=SETTINGS, keys=keys) as root,
        connected(root) as connection,
    ):
        connection.sendall(request(b"/v1/completions", b"content-length: 1000000", b"connection: close"))
        assert answer_of(connection).startswith(b"HTTP/1.1 401 ")
        # serving ends here, and asserts that it takes less than TIMEOUT_S, which is head_s
