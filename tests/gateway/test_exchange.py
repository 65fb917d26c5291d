from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from live import TIMEOUT_S, chat_body, post, serving_app, serving_engine
from scripted import ScriptedEngine
from starlette.types import ASGIApp, Receive, Scope, Send
from test_cancellation import eventually, leave_before_the_first_byte, leave_midway

from agentspec.gateway import EmbeddedUpstream, create_app
from agentspec.gateway.server import bind


@contextmanager
def serving_elsewhere(app: ASGIApp) -> Iterator[str]:
    """The root URL of an application in a plain uvicorn, which knows nothing of exchanges."""
    with bind("127.0.0.1", 0) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        assert eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)


def told(root: str, request: bytes) -> bytes:
    """All that comes back until the connection is closed."""
    url = httpx.URL(root)
    with socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def without_id(answer: httpx.Response) -> list[str]:
    """The lines of an answer but for what is new in each."""
    return [line.partition('"object"')[2] or line for line in answer.text.splitlines()]


def test_in_another_server_the_gateway_answers_alike() -> None:
    stream = chat_body(stream=True, stream_options={"include_usage": True})
    app = create_app(EmbeddedUpstream(ScriptedEngine()))
    with serving_engine(ScriptedEngine()) as ours, serving_elsewhere(app) as theirs:
        for body, headers in (
            (chat_body(), {}),
            (stream, {}),
            (stream, {"x_agentspec_stage": "a/b"}),
            ({}, {}),
        ):
            mine, other = (post(root, body, **headers) for root in (ours, theirs))
            assert mine.status_code == other.status_code
            assert without_id(mine)[0] == without_id(other)[0]
            names = set(mine.headers) - {"date", "server"}
            assert names == set(other.headers) - {"date", "server"}
            assert len(other.headers["x-request-id"]) == 32
        counted = httpx.get(f"{theirs}/metrics", trust_env=False).text
    assert 'requests_total{endpoint="/v1/chat/completions",status="200"} 3.0' in counted
    assert 'requests_total{endpoint="/v1/chat/completions",status="400"} 1.0' in counted


@pytest.mark.parametrize("leave", [leave_midway, leave_before_the_first_byte])
def test_in_another_server_a_client_that_leaves_is_noticed(leave: Callable[..., None]) -> None:
    is_midway = leave is leave_midway
    engine = ScriptedEngine(is_endless=is_midway, is_silent=not is_midway)
    with serving_elsewhere(create_app(EmbeddedUpstream(engine))) as root:
        leave(*((root,) if is_midway else (engine, root)))
        assert engine.released.wait(TIMEOUT_S)


def test_a_client_of_http_1_0_gets_a_stream_without_chunks() -> None:
    body = b'{"stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    head = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    with serving_engine(ScriptedEngine()) as root:
        answer_head, _, stream = told(root, head + body).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in answer_head
    assert b"connection: close" in answer_head
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"data: [DONE]\n\n")


def answering(*messages: dict[str, Any], fails: bool = False) -> ASGIApp:
    """An application that has only this to say."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        for message in messages:
            await send(message)
        if fails:
            raise ValueError("on purpose")

    return app


def start(**headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": pairs}


def body(text: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("app", "end"),
    [
        (answering(start(content_length="9"), body(b"short")), b"\r\n\r\nshort"),
        (answering(start(content_length="2"), body(b"longer")), b"\r\n\r\nlonger"),
        (answering(start(), body(b"half", more=True)), b"4\r\nhalf\r\n"),
        (answering(start(), body(b"half", more=True), fails=True), b"4\r\nhalf\r\n"),
        (answering(start(connection="close"), body(b"all")), b"3\r\nall\r\n0\r\n\r\n"),
    ],
    ids=["too short", "too long", "no end", "fails", "closes"],
)
def test_what_can_not_be_followed_by_another_answer_ends_the_connection(app: ASGIApp, end: bytes) -> None:
    with serving_app(app) as root:
        assert told(root, REQUEST + REQUEST).endswith(end)


@pytest.mark.parametrize("app", [answering(), answering(fails=True)], ids=["says nothing", "fails"])
def test_an_application_that_does_not_answer_is_answered_for(app: ASGIApp) -> None:
    with serving_app(app) as root:
        answer = told(root, REQUEST)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"connection: close" in answer
