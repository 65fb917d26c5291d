from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import openai
import pytest

from agentspec.errors import ContextLengthError, EngineBusyError, EngineError
from agentspec.gateway import GatewaySettings
from tests.gateway.support.live import chat_body, client_of, post, serving_engine
from tests.gateway.support.scripted import STEPS, ScriptedEngine


def error_of(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/embeddings", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("POST", "/stages/a", 404),
        ("POST", "/stages/a/v1/nothing", 404),
    ],
)
def test_unknown_routes_and_methods(url: str, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, url + path)
    assert answer.status_code == status
    error = error_of(answer)
    assert error["type"] == "invalid_request_error"
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe{", b'{"a": NaN}', b"[" * 100_000, b'{"a":' + b"1" * 5000 + b"}"],
)
def test_malformed_json(url: str, body: bytes) -> None:
    answer = post(url, body)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_json"


@pytest.mark.parametrize("half", [b"\\ud800", b"\xed\xa0\x80"])
@pytest.mark.parametrize("field", ["content", "stage", "model"])
def test_half_a_surrogate_pair_is_no_text(url: str, half: bytes, field: str) -> None:
    bodies = {
        "content": b'{"messages": [{"role": "user", "content": "%s"}]}',
        "stage": b'{"metadata": {"agentspec_stage": "%s"}}',
        "model": b'{"model": "%s"}',
    }
    answer = post(url, bodies[field] % half)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_json"


def test_half_a_surrogate_pair_in_another_encoding(url: str) -> None:
    answer = post(url, '{"model": "\\ud800"}'.encode("utf-16"))
    assert answer.status_code == 400
    assert "surrogate" in error_of(answer)["message"]


@pytest.mark.parametrize(
    "fields",
    [{"model": "x" * 99_999}, {"tool_choice": ["x" * 99_999]}, {"messages": [{"role": ["x"] * 99_999}]}],
    ids=["model", "tool_choice", "role"],
)
def test_what_a_client_sent_is_quoted_in_short(url: str, fields: dict[str, Any]) -> None:
    answer = post(url, chat_body(**fields))
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "content": "a", "tool_calls": [5]}]},
            "messages[0].tool_calls[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": ""}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"metadata": {"agentspec_stage": "a//b"}}, "metadata.agentspec_stage"),
        ({"metadata": {"agentspec_stage": 5}}, "metadata.agentspec_stage"),
    ],
)
def test_a_bad_field_is_named(url: str, fields: dict[str, Any], param: str) -> None:
    answer = post(url, chat_body(**fields))
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-agentspec-stage", ""),
        ("x-agentspec-stage", "a//b"),
        ("x-agentspec-stage", "/".join("abcdefghi")),
        ("x-agentspec-stage", "%ff"),
        ("x-agentspec-stage", "a%20"),
        ("x-agentspec-stage", "a" * 256),
        ("x-agentspec-session", "s" * 256),
        ("x-agentspec-max-draft", "-1"),
        ("x-agentspec-max-draft", "many"),
        ("x-agentspec-max-draft", "1025"),
        ("x-agentspec-min-match", "0"),
        ("x-agentspec-learn", "2"),
        ("x-agentspec-learn", "yes"),
        ("x-agentspec-subject", ""),
        ("x-agentspec-subject", "s" * 256),
    ],
)
def test_a_bad_header_is_named(url: str, header: str, value: str) -> None:
    answer = post(url, chat_body(), **{header: value})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == header
    assert header in error["message"]


@pytest.mark.parametrize("stage", ["a%2F%2Fb", "%ff", "a/b/c/d/e/f/g/h/i", "%20a"])
def test_a_bad_stage_in_the_url(url: str, stage: str) -> None:
    answer = post(url, chat_body(), f"/stages/{stage}/v1/chat/completions")
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_stage"


def test_an_unknown_model(url: str) -> None:
    with client_of(url) as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"
    assert "'gpt-9'" in caught.value.message


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit(is_chunked: bool) -> None:
    settings = GatewaySettings(body_limit_bytes=1024)
    body = json.dumps(chat_body(user="x" * 3000)).encode()
    with serving_engine(ScriptedEngine(), settings=settings) as root, httpx.Client(base_url=root) as client:
        parts = iter([body[:1500], body[1500:]])
        answer = client.post("/v1/chat/completions", content=parts if is_chunked else body)
        assert answer.status_code == 413
        assert error_of(answer)["code"] == "body_too_large"
        assert client.post("/v1/chat/completions", json=chat_body()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (ContextLengthError("9000 tokens do not fit"), 400, "context_length_exceeded"),
        (EngineBusyError("256 requests wait"), 429, "engine_busy"),
        (EngineError("the engine was stopped"), 500, "engine_error"),
    ],
)
def test_the_engine_refuses(refusal: Exception, status: int, code: str, stream: bool) -> None:
    with serving_engine(ScriptedEngine(refusal=refusal)) as root:
        answer = post(root, chat_body(stream=stream))
    assert answer.status_code == status
    error = error_of(answer)
    assert error["code"] == code
    assert error["message"] == str(refusal)
    assert answer.headers["x-agentspec-stage"] == "default"


def test_an_engine_error_midway_is_an_event_and_the_end() -> None:
    with serving_engine(ScriptedEngine(failure=EngineError("a decode step failed"))) as root:
        with client_of(root) as client:
            stream = client.chat.completions.create(**chat_body(stream=True))
            seen = []
            with pytest.raises(openai.APIError, match="a decode step failed"):
                seen.extend(chunk.choices[0].delta.content for chunk in stream)
        lines = post(root, chat_body(stream=True)).text.strip().split("\n\n")
        whole = post(root, chat_body())
    assert len(lines) == 1 + len(STEPS)
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["type"] == "server_error"
    assert whole.status_code == 500
    assert error_of(whole)["message"] == "a decode step failed"


def test_a_bug_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "agentspec.gateway")
    with serving_engine(ScriptedEngine(refusal=ZeroDivisionError("a secret path"))) as root:
        answer = post(root, chat_body())
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "a secret path" in caplog.text


def test_an_engine_that_stops_short_is_no_whole_answer() -> None:
    with serving_engine(ScriptedEngine(steps=())) as root:
        for stream in (False, True):
            assert error_of(post(root, chat_body(stream=stream)))["code"] == "engine_error"
