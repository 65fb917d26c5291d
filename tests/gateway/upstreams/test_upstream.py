from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from agentspec.errors import ConfigError, EngineError
from agentspec.gateway import ApiKeys, UpstreamSettings
from tests.gateway.support.live import TIMEOUT_S, chat_body, client_of, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import STEPS, ScriptedEngine
from tests.gateway.support.telemetry import of_stage, scrape

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"


@pytest.fixture(scope="module")
def proxy_url(url: str) -> Iterator[str]:
    with serving_proxy(f"{url}/v1/") as root:
        yield root


@contextmanager
def raw_server(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield a server that sends ``answer`` to one request and disconnects, and the bytes that it read."""
    seen: list[bytes] = []

    def run(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(TIMEOUT_S)
            data = b""
            while b"\r\n\r\n" not in data or not data.rstrip().endswith(b"}"):
                data += connection.recv(65536)
            seen.append(data)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=run, args=(listening,))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
        thread.join(TIMEOUT_S)


def test_the_openai_client_sees_no_difference(proxy_url: str) -> None:
    with client_of(proxy_url) as client:
        whole = client.chat.completions.create(**chat_body())
        chunks = list(client.chat.completions.create(**chat_body(stream=True)))
        text = client.completions.create(model="scripted", prompt="a")
        models = client.models.list().data
        one = client.models.retrieve("scripted")
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-9")
    assert whole.choices[0].message.content == "Hello, wörld!"
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", *STEPS]
    assert text.choices[0].text == "Hello, wörld!"
    assert [models[0].id, one.id] == ["scripted", "scripted"]
    assert caught.value.code == "model_not_found"


def test_an_error_of_the_engine_comes_back_as_it_is(proxy_url: str) -> None:
    answer = post(proxy_url, chat_body(temperature="hot"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temperature"


def test_the_stage_travels_to_the_gateway_behind(proxy_url: str, engine: ScriptedEngine) -> None:
    answer = post(
        proxy_url,
        chat_body(),
        "/stages/flow/caf%C3%A9/v1/chat/completions",
        x_request_id="one",
        x_session_id="s",
    )
    assert engine.last.tags.stage.name == "flow/café"
    assert engine.last.tags.session == "s"
    assert answer.headers.get_list("x-agentspec-stage") == ["flow/caf%C3%A9"]
    assert answer.headers.get_list("x-agentspec-stage-source") == ["url"]
    assert answer.headers.get_list("x-request-id") == ["one"]
    assert len(answer.headers.get_list("date")) == 1


def test_bytes_go_both_ways_untouched() -> None:
    body = b'{ "messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9"}],\n "x_unknown": 1.50 }'
    sent = b'{"odd":   "spacing \\u00e9"}'
    answer = HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(sent) + sent
    with raw_server(answer) as (upstream, seen), serving_proxy(upstream) as root:
        got = post(root, body, x_agentspec_stage="flow/a", connection="x-secret", x_secret="1", te="trailers")
    assert got.content == sent
    head, _, forwarded = seen[0].partition(b"\r\n\r\n")
    assert forwarded.endswith(body[1:])
    assert json.loads(forwarded)["vllm_xargs"] == {
        "agentspec_stage": "flow/a",
        "agentspec_tenant": "default",
        "agentspec_learn": 1,
    }
    names = [line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    assert b"x-secret" not in names
    assert b"te" not in names
    assert names.count(b"host") == 1
    assert names.count(b"content-length") == 1
    assert b"accept-encoding: identity" in head.lower()


def test_without_xargs_the_body_is_not_touched_at_all() -> None:
    body = b'{ "messages": [] }'
    with (
        raw_server(HEAD % b"application/json" + b"content-length: 2\r\n\r\n{}") as (upstream, seen),
        serving_proxy(upstream, settings={"sends_xargs": False}) as root,
    ):
        assert post(root, body).content == b"{}"
    assert seen[0].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ({}, {}, b"authorization: Bearer mine"),
        ({"api_key": "engine-key"}, {}, b"authorization: Bearer engine-key"),
        ({}, {"keys": ApiKeys.parse(["mine"]), "fleet": {"forwards_authorization": False}}, None),
    ],
)
def test_whose_key_the_engine_sees(
    settings: dict[str, object], options: dict[str, Any], expected: bytes | None
) -> None:
    with (
        raw_server(HEAD % b"application/json" + b"content-length: 2\r\n\r\n{}") as (upstream, seen),
        serving_proxy(upstream, settings=settings, **options) as root,
    ):
        assert post(root, chat_body(), authorization="Bearer mine").status_code == 200
    lines = [line for line in seen[0].split(b"\r\n") if line.lower().startswith(b"authorization")]
    assert lines == ([] if expected is None else [expected])


def test_headers_are_forwarded_as_they_came() -> None:
    given = [(b"x-title", b"Caf\xc3\xa9"), (b"x-old", b"Caf\xe9"), (b"baggage", b"a=1"), (b"baggage", b"b=2")]
    with (
        raw_server(HEAD % b"application/json" + b"content-length: 2\r\n\r\n{}") as (upstream, seen),
        serving_proxy(upstream) as root,
    ):
        assert httpx.post(f"{root}/v1/completions", headers=given, json={}).status_code == 200
    lines = [line for line in seen[0].split(b"\r\n") if line.split(b":")[0] in dict(given)]
    assert lines == [name + b": " + value for name, value in given]


@pytest.mark.parametrize(
    "path", ["/v1/models/%2e%2e/%2e%2e/metrics", "/v1/models/../../metrics", "/stages/a/v1/models/x/%2E%2E/y"]
)
def test_no_model_name_leads_to_another_path_of_the_engine(proxy_url: str, path: str) -> None:
    url = httpx.URL(proxy_url)
    with socket.create_connection((url.host, url.port or 0)) as connection:  # httpx would resolve the dots
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"unknown_url" in answer


def test_an_engine_error_midway_passes_through() -> None:
    engine = ScriptedEngine(failure=EngineError("a decode step failed"))
    with (
        serving_engine(engine) as upstream,
        serving_proxy(upstream) as root,
        client_of(root) as client,
        pytest.raises(openai.APIError, match="a decode step failed"),
    ):
        list(client.chat.completions.create(**chat_body(stream=True)))


def test_metrics_are_counted_from_what_passes() -> None:
    with serving_engine(ScriptedEngine()) as upstream, serving_proxy(upstream) as root:
        post(root, chat_body(), x_agentspec_stage="a")
        post(root, chat_body(stream=True), x_agentspec_stage="a")
        post(root, chat_body(stream=True, stream_options={"include_usage": True}), x_agentspec_stage="a")
        post(root, chat_body(n=0), x_agentspec_stage="a")
        samples = scrape(root)
        assert httpx.get(f"{root}/health").status_code == 200
    assert of_stage(samples, "agentspec_requests_total", "a") == 4
    assert of_stage(samples, "agentspec_output_tokens_total", "a") == 2 * 2 * len(STEPS)
    assert of_stage(samples, "agentspec_accepted_tokens_total", "a") == 12
    assert of_stage(samples, "agentspec_accepted_tokens_by_source_total", "a", source="stage") == 8


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu-box:8000",
        "ftp://gpu-box",
        "http://",
        "/v1",
        "http://[gpu-box",
        "http://gpu-box:99999",
        "http://gpu-box/v1?key=k",
        "http://me:s3cret@gpu-box",
    ],
)
def test_a_bad_engine_url(url: str) -> None:
    with pytest.raises(ConfigError, match="engine URL") as caught:
        UpstreamSettings.at(url)
    assert "s3cret" not in str(caught.value)
