"""A gateway under attack: its address, the keys to use, and its answers."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

DEADLINE_S = 60.0  # per attack, only against hanging: longer than the gateway's own limits
MOST_READ_BYTES = 1 << 22
PART_BYTES = 1 << 16


class NotHereError(Exception):
    """The address does not belong to this machine."""


@dataclass(frozen=True)
class Answer:
    """One parsed answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Target:
    """A gateway on this machine.

    Attributes:
        mine, theirs: keys of two tenants.
        operator: the operator's key, or None if the attacks do without it.
    """

    root: str
    mine: str
    theirs: str
    operator: str | None = None

    def __post_init__(self) -> None:
        host = urlsplit(self.root).hostname or ""
        try:
            is_here = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_here = False
        if not is_here:
            raise NotHereError(f"{self.root!r}: attacks go to a loopback address alone, as 127.0.0.1")

    def connect(self) -> socket.socket:
        """Open a new connection."""
        parts = urlsplit(self.root)
        return socket.create_connection((parts.hostname, parts.port or 80), timeout=DEADLINE_S)

    def filled(self, request: bytes) -> bytes:
        """Replace ``$MINE``, ``$THEIRS`` and ``$OPERATOR`` by keys."""
        keys = {b"$MINE": self.mine, b"$THEIRS": self.theirs, b"$OPERATOR": self.operator or "none"}
        for name, key in keys.items():
            request = request.replace(name, key.encode())
        return request

    def said(self, request: bytes, *, leaves: bool = False) -> bytes:
        """Send the request and return all bytes until the gateway closes.

        Args:
            leaves: the client half-closes the connection when it has sent everything.

        Raises:
            TimeoutError: the gateway hangs.
        """
        deadline = time.monotonic() + DEADLINE_S
        with self.connect() as connection:
            with suppress(ConnectionError):
                connection.sendall(self.filled(request))
                if leaves:
                    connection.shutdown(socket.SHUT_WR)
            got = bytearray()
            with suppress(ConnectionError):
                while (part := connection.recv(PART_BYTES)) and len(got) < MOST_READ_BYTES:
                    got += part
                    if time.monotonic() > deadline:
                        raise TimeoutError
        return bytes(got)

    def answer_on(self, connection: socket.socket) -> Answer:
        """Read the next answer on a connection that may stay open. Raise ValueError if there is no answer."""
        got = bytearray()
        while not (found := answers(bytes(got), may_be_part=True)):
            part = connection.recv(PART_BYTES)
            if not part:
                raise ValueError(f"no answer: {bytes(got)!r}")
            got += part
        return found[0]

    def post(
        self,
        path: str,
        body: bytes | dict[str, Any],
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send an ordinary request with the key of ``mine`` or another key, and with more headers."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {"authorization": f"Bearer {key or self.mine}", "content-type": "application/json"}
        with httpx.Client(trust_env=False, timeout=DEADLINE_S, verify=False) as client:
            return client.post(f"{self.root}{path}", content=content, headers={**own, **(headers or {})})

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        """Send a GET request with the key of ``mine`` or another key."""
        with httpx.Client(trust_env=False, timeout=DEADLINE_S, verify=False) as client:
            return client.get(f"{self.root}{path}", headers={"authorization": f"Bearer {key or self.mine}"})

    def learned_by_them(self) -> Any:
        """Return the gateway's report on the other tenant's stages. No attack may change it."""
        return self.get("/agentspec/stages", self.theirs).json()


def answers(raw: bytes, *, may_be_part: bool = False) -> list[Answer]:
    """Parse the answers in ``raw``. Raise ValueError if it holds other bytes too.

    Args:
        may_be_part: the last answer may be incomplete; it is then left out.
    """
    found = []
    while raw:
        head, end, rest = raw.partition(b"\r\n\r\n")
        if may_be_part and not end:
            break
        lines = head.decode("latin-1").split("\r\n")
        version, _, status = lines[0].partition(" ")
        if not end or version != "HTTP/1.1":
            raise ValueError(f"no answer: {raw[:80]!r}")
        if status.startswith("1"):
            raw = rest
            continue
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        if "content-length" in headers:
            length = int(headers["content-length"])
            body, raw = rest[:length], rest[length:]
            if len(body) < length:
                if may_be_part:
                    break
                raise ValueError(f"half an answer: {head!r}")
        else:
            body, raw = rest, b""
        found.append(Answer(int(status[:3]), headers, body))
    return found


def check_error(status: int, kind: str, body: bytes) -> None:
    """Check that an answer from 400 on is an error in OpenAI's form, and not a server error."""
    if status < 400:
        return
    assert status < 500, f"status {status}: {body[:200]!r}"
    assert kind.startswith("application/json"), kind
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
