from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from live import TIMEOUT_S, chat_body, serving_engine, serving_proxy
from scripted import ScriptedEngine
from test_gateway_metrics import scrape


def leave_midway(root: str) -> None:
    """Read two parts of an endless stream, then close the connection."""
    with httpx.stream("POST", f"{root}/v1/chat/completions", json=chat_body(stream=True)) as answer:
        parts = answer.iter_raw()
        assert next(parts)
        assert next(parts)


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


def eventually(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def test_a_client_that_leaves_midway_frees_the_engine() -> None:
    engine = ScriptedEngine(is_endless=True)
    with serving_engine(engine) as root:
        leave_midway(root)
        assert engine.released.wait(TIMEOUT_S)
        gone = (
            "agentspec_gateway_requests_total",
            (("endpoint", "/v1/chat/completions"), ("status", "499")),
        )
        assert eventually(lambda: scrape(root).get(gone) == 1)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}])
def test_a_client_that_leaves_before_the_first_byte_frees_the_engine(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine(is_silent=True)
    with serving_engine(engine) as root:
        leave_before_the_first_byte(engine, root, **fields)
        assert engine.released.wait(TIMEOUT_S)


def test_a_client_that_leaves_frees_every_prompt_of_a_batch() -> None:
    engine = ScriptedEngine(is_silent=True)
    with serving_engine(engine) as root:
        leave_before_the_first_byte(engine, root, "/v1/completions", prompt=["a", "b"])
        assert engine.released.wait(TIMEOUT_S)


def test_the_upstream_of_a_proxy_is_freed_too() -> None:
    engine = ScriptedEngine(is_endless=True)
    with serving_engine(engine) as upstream, serving_proxy(upstream) as root:
        leave_midway(root)
        assert engine.released.wait(TIMEOUT_S)


def test_the_upstream_of_a_proxy_is_freed_before_the_first_byte() -> None:
    engine = ScriptedEngine(is_silent=True)
    with serving_engine(engine) as upstream, serving_proxy(upstream) as root:
        leave_before_the_first_byte(engine, root)
        assert engine.released.wait(TIMEOUT_S)
