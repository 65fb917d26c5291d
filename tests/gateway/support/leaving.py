"""Clients that disconnect early, and waiting for what follows."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from agentspec.gateway.call import Endpoint
from tests.gateway.support.live import TIMEOUT_S, chat_body
from tests.gateway.support.scripted import ScriptedEngine

BODIES = {
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Endpoint.COMPLETIONS: {"prompt": "hi"},
    Endpoint.RESPONSES: {"input": "hi"},
    Endpoint.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    Endpoint.CHAT_BATCH: {"messages": [[{"role": "user", "content": "hi"}]]},
}


def eventually(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def leave_before_the_first_byte(
    engine: ScriptedEngine, root: str, path: str = "/v1/chat/completions", **fields: Any
) -> None:
    """Send a request that gets no response, wait until the engine has it, then close the connection."""
    body = json.dumps(chat_body(**fields)).encode()
    url = httpx.URL(root)
    with socket.create_connection((url.host, url.port or 0)) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: {url.host}\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert engine.started.wait(TIMEOUT_S)
        assert not engine.released.is_set()


def leave_midway(root: str) -> None:
    """Read two parts of an endless stream, then close the connection."""
    with httpx.stream("POST", f"{root}/v1/chat/completions", json=chat_body(stream=True)) as answer:
        parts = answer.iter_raw()
        assert next(parts)
        assert next(parts)


@contextmanager
def asking(root: str, endpoint: str, way: str, *, missing: int = 0) -> Iterator[socket.socket]:
    """Send a request except its last ``missing`` bytes, and disconnect at the end."""
    url = httpx.URL(root)
    body = json.dumps(BODIES[Endpoint(endpoint)]).encode()
    head = f"POST {endpoint} HTTP/1.1\r\nhost: x\r\nx-way: {way}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall((head.encode() + body)[: len(head) + len(body) - missing])
        yield connection


@contextmanager
def connected(root: str) -> Iterator[socket.socket]:
    """Yield a connection to the gateway, closed at the end."""
    url = httpx.URL(root)
    with socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S) as connection:
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """Return all data until the end. A reset also ends it, if the gateway did not read all our data."""
    parts: list[bytes] = []
    with suppress(ConnectionResetError):
        parts.extend(iter(lambda: connection.recv(65536), b""))
    return b"".join(parts)
