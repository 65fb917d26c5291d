from __future__ import annotations

import json
import socket
import threading

import httpx

from tests.gateway.support.live import TIMEOUT_S, chat_body, serving_engine
from tests.gateway.support.scripted import ScriptedEngine


def test_a_stream_under_way_gets_an_error_event_and_the_engine_is_closed() -> None:
    engine = ScriptedEngine(is_endless=True)
    received: list[str] = []
    with serving_engine(engine, grace_s=0.1) as root:

        def read_all() -> None:
            received.append(httpx.post(f"{root}/v1/chat/completions", json=chat_body(stream=True)).text)

        reading = threading.Thread(target=read_all)
        reading.start()
        assert engine.started.wait(TIMEOUT_S)
    reading.join(TIMEOUT_S)
    *_, last = received[0].strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert engine.released.is_set()
    assert engine.num_closed == 1


def test_a_request_under_way_that_sent_nothing_gets_a_status() -> None:
    engine = ScriptedEngine(is_silent=True)
    received: list[httpx.Response] = []
    with serving_engine(engine, grace_s=0.1) as root:
        url = f"{root}/v1/chat/completions"
        asking = threading.Thread(target=lambda: received.append(httpx.post(url, json=chat_body())))
        asking.start()
        assert engine.started.wait(TIMEOUT_S)
    asking.join(TIMEOUT_S)
    assert received[0].status_code == 503
    assert received[0].json()["error"]["type"] == "server_error"


def test_a_request_that_ends_within_the_grace_period_is_whole() -> None:
    engine = ScriptedEngine(steps=tuple(f"{index} " for index in range(300)))
    received: list[httpx.Response] = []
    with serving_engine(engine, grace_s=TIMEOUT_S) as root:
        url = f"{root}/v1/chat/completions"
        asking = threading.Thread(
            target=lambda: received.append(httpx.post(url, json=chat_body(stream=True)))
        )
        asking.start()
        assert engine.started.wait(TIMEOUT_S)
    asking.join(TIMEOUT_S)
    assert received[0].text.endswith("data: [DONE]\n\n")


def test_a_body_that_is_still_coming_does_not_hold_up_the_end() -> None:
    with serving_engine(ScriptedEngine(), grace_s=0.1) as root:
        url = httpx.URL(root)
        connection = socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert httpx.get(f"{root}/health").status_code == 200  # so the server has read the earlier bytes
    with connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting_down" in answer
