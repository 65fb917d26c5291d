from __future__ import annotations

import gc
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentspec.gateway import EmbeddedUpstream, Fleet, FleetSettings, UpstreamSettings, create_app
from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.http.api_response import EVENT_STREAM_HEADERS, ApiResponse, AsgiResponseWriter
from agentspec.gateway.server import bind
from tests.gateway.support.leaving import eventually, leave_before_the_first_byte, leave_midway
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving_app, serving_engine, serving_proxy
from tests.gateway.support.misbehaving import EVENT, misbehaving
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import scrape


@contextmanager
def serving_elsewhere(app: ASGIApp) -> Iterator[str]:
    """Yield the root URL of an application in a plain uvicorn, without the gateway's response writers."""
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


BODY = json.dumps(chat_body(stream=True)).encode()
POST_TO_ENGINE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(BODY)
    + b"x-way: %b\r\n\r\n"
    + BODY
)


def told(root: str, request: bytes) -> bytes:
    """Return all data until the connection is closed."""
    url = httpx.URL(root)
    with socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def counted(status: str) -> Any:
    """Return the metric key of chats that ended with ``status``."""
    labels = (("endpoint", "/v1/chat/completions"), ("status", status))
    return "agentspec_gateway_requests_total", labels


def without_new(answer: httpx.Response) -> str:
    """Return the response's text without its id and creation time."""
    return re.sub(r'"id":"[^"]*"|"created":[0-9]+', "", answer.text)


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
            assert without_new(mine) == without_new(other)
            names = set(mine.headers) - {"date", "server"}
            assert names == set(other.headers) - {"date", "server"}
            assert len(other.headers["x-request-id"]) == 32
        assert eventually(
            lambda: [scrape(theirs).get(counted(status)) for status in ("200", "400")] == [3, 1]
        )


@pytest.mark.parametrize("leave", [leave_midway, leave_before_the_first_byte])
def test_in_another_server_a_client_that_leaves_is_noticed(leave: Callable[..., None]) -> None:
    is_midway = leave is leave_midway
    engine = ScriptedEngine(is_endless=is_midway, is_silent=not is_midway)
    with serving_elsewhere(create_app(EmbeddedUpstream(engine))) as root:
        leave(*((root,) if is_midway else (engine, root)))
        assert engine.released.wait(TIMEOUT_S)


def test_in_another_server_no_event_waits_for_the_next() -> None:
    with misbehaving() as engine:
        fleet = Fleet(FleetSettings(upstreams=[UpstreamSettings(url=engine.url)]))
        with (
            serving_elsewhere(create_app(fleet)) as root,
            httpx.stream(
                "POST",
                f"{root}/v1/chat/completions",
                json=chat_body(stream=True),
                headers={"x-way": "falls silent"},
                timeout=TIMEOUT_S,
                trust_env=False,
            ) as answer,
        ):
            got, parts = b"", answer.iter_raw()
            while got.count(EVENT) < 3:  # else it times out
                got += next(parts)


def alive(kind: type) -> list[object]:
    return [one for one in gc.get_objects() if type(one) is kind]


@pytest.mark.parametrize(("parts", "gap"), [((b"data: 1", b"\n", b"\n"), b""), ((b"data: 1\n",), b"\n\n")])
async def test_an_error_is_an_event_of_its_own(parts: tuple[bytes, ...], gap: bytes) -> None:
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    response = ApiResponse(AsgiResponseWriter(send))
    await response.start(200, EVENT_STREAM_HEADERS)
    for part in parts:
        await response.write(part)
    await response.fail(ShuttingDownError("the server is shutting down"))
    assert b"".join(sent).startswith(b"".join(parts) + gap + b'data: {"error"')


def test_half_an_answer_is_not_a_whole_one_for_http_1_0() -> None:
    request = (POST_TO_ENGINE % b"dies in a chunked body").replace(b"HTTP/1.1", b"HTTP/1.0")
    with misbehaving() as engine, serving_proxy(engine.url) as root, pytest.raises(ConnectionResetError):
        told(root, request)


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
    """Return an application that sends only these messages."""

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
        (answering(start(content_length="2"), body(b"longer")), b"\r\n\r\nlo"),
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
