"""Attacks by unwanted bytes: large bodies refused early, and clients without a key that keep sending.

All of them are bounded. To add one, add a row.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.target import DEADLINE_S, PART_BYTES, Target, check_error

MIB = 1 << 20
MOST_READ_BYTES = 8 * MIB  # limit for the gateway on a refused client
MOST_SENT_BYTES = 128 * MIB
HOPS = {"1.1": b"", "1.1, close": b"connection: close\r\n", "1.0": b""}


@dataclass(frozen=True)
class Refusal:
    """A client that sends all of a body before it reads, and still gets its answer."""

    name: str
    head: str
    statuses: frozenset[int]
    num_bytes: int
    is_chunked: bool = False
    key: str = "wrong"

    def run(self, target: Target) -> None:
        """Raise AssertionError if the answer is lost."""
        for hop, header in HOPS.items():
            framing = (
                b"transfer-encoding: chunked" if self.is_chunked else b"content-length: %d" % self.num_bytes
            )
            head = (
                f"{self.head} HTTP/{hop[:3]}\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n".encode()
                + header
                + framing
                + b"\r\n\r\n"
            )
            body = b" " * self.num_bytes
            if self.is_chunked:
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            with target.connect() as connection:
                connection.sendall(target.filled(head) + body)
                answer = target.answer_on(connection)
            assert answer.status in self.statuses, (hop, answer.status)
            check_error(answer.status, answer.headers.get("content-type", ""), answer.body)


@dataclass(frozen=True)
class Flood:
    """A client that keeps sending and reads nothing. The gateway soon closes the connection.

    Attributes:
        start: bytes sent first.
    """

    name: str
    start: bytes
    part: bytes = b" " * PART_BYTES

    def run(self, target: Target) -> None:
        """Raise AssertionError if the gateway accepts too many bytes."""
        num_sent, deadline = 0, time.monotonic() + DEADLINE_S
        with target.connect() as connection, suppress(ConnectionError):
            connection.sendall(target.filled(self.start))
            while num_sent < MOST_SENT_BYTES and time.monotonic() < deadline:
                num_sent += connection.send(self.part)
        assert num_sent <= MOST_READ_BYTES + buffered_bytes(), f"{num_sent / MIB:.0f} MiB were taken"


def buffered_bytes() -> int:
    """Return the most bytes that the buffers of two sockets can hold under this kernel's limits."""
    limits = [Path(f"/proc/sys/net/ipv4/tcp_{buffer}") for buffer in ("rmem", "wmem")]
    if not all(limit.exists() for limit in limits):
        return 16 * MIB  # not Linux
    return sum(int(limit.read_text().split()[-1]) for limit in limits)


POST = "POST /v1/chat/completions"
UNKNOWN = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n"
CHUNK = b"10000\r\n%b\r\n" % (b" " * PART_BYTES)
REFUSED, UNAUTHENTICATED, MISSING = frozenset((400, 431)), frozenset((401,)), frozenset((404,))

FLOODS: list[Refusal | Flood] = [
    Refusal("a wrong key, 300 KB", f"{POST}", UNAUTHENTICATED, 300_000),
    Refusal("a wrong key, 8 MB", f"{POST}", UNAUTHENTICATED, 8_000_000),
    Refusal("a wrong key, chunks of 8 MB", f"{POST}", UNAUTHENTICATED, 8_000_000, True),
    Refusal("an unknown URL, 5 MB", "POST /agentspec/nothing", MISSING, 5_000_000, key="$MINE"),
    Refusal("an operator's URL, 5 MB", "POST /agentspec/save", frozenset((403,)), 5_000_000, key="$MINE"),
    Refusal("too large a body, 40 MB", f"{POST}", frozenset((413,)), 40_000_000, key="$MINE"),
    Refusal("too large a body, chunks of 40 MB", f"{POST}", frozenset((413,)), 40_000_000, True, key="$MINE"),
    Refusal("health, 5 MB", "POST /health", frozenset((405,)), 5_000_000),
    Refusal("no HTTP, 5 MB", "HACK /v1", REFUSED, 5_000_000),
    Flood("a wrong key", UNKNOWN + b"content-length: 99999999999\r\n\r\n"),
    Flood("a wrong key, close", UNKNOWN + b"connection: close\r\ncontent-length: 99999999999\r\n\r\n"),
    Flood("a wrong key, chunks", UNKNOWN + b"transfer-encoding: chunked\r\n\r\n", CHUNK),
    Flood("no HTTP", b"GET / HTTP/9.9\r\n\r\n"),
    Flood("an endless head", UNKNOWN, b"x-more: 1234567890\r\n" * 3000),
    Flood("an endless path", b"GET /"),
    Flood("empty lines", b"", b"\r\n" * 30_000),
]
