"""Recordings can be replayed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.datastructures import Headers

from agentspec.errors import ConfigError, RequestError
from agentspec.gateway import Recorder
from agentspec.gateway.call import ApiCall
from agentspec.gateway.telemetry.recorder import AnswerParts, recorded_request, recorded_response
from agentspec.recorded import CallLibrary, read
from tests.gateway.support.live import client_of, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"größe": 1}}\n</tool_call>'
LOOK = ("look", '{"größe": 1}')
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
TOOLS: list[Any] = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="scripted", messages=HI, tools=CHAT_TOOLS, **fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(model="scripted", prompt="hi", **fields)


def respond(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(model="scripted", input="hi", tools=TOOLS, **fields)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_behind_http", [False, True])
@pytest.mark.parametrize("ask", [chat, respond])
def test_calls_of_tools(
    ask: Callable[..., Any], is_behind_http: bool, is_streamed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    recorder = Recorder(path)
    engine = ScriptedEngine(steps=("I look.\n", CALL[:20], CALL[20:], "\n", CALL))
    headers = {"X-AgentSpec-Stage": "bugs/agent", "X-AgentSpec-Session": "one"}
    with serving_engine(engine, recorder=None if is_behind_http else recorder) as inner:
        if is_behind_http:
            with serving_proxy(inner, recorder=recorder) as root, client_of(root) as client:
                answer = ask(client, stream=is_streamed, extra_headers=headers)
                _ = list(answer) if is_streamed else None
        else:
            with client_of(inner) as client:
                answer = ask(client, stream=is_streamed, extra_headers=headers)
                _ = list(answer) if is_streamed else None
    recorder.close()
    (line,) = path.read_text().splitlines()
    told = json.loads(line)
    assert (told["stage"], told["session"], told["model"]) == ("bugs/agent", "one", "scripted")
    ((_, answered),) = CallLibrary(read(path)).take(HI)
    assert (answered.text, answered.calls, answered.is_cut) == ("I look.", (LOOK, LOOK), False)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("ask", [chat, complete])
def test_several_choices_that_were_cut(ask: Callable[..., Any], is_streamed: bool, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    recorder = Recorder(path)
    engine = ScriptedEngine(end="length")
    with serving_engine(engine, recorder=recorder) as root, client_of(root) as client:
        answer = ask(client, n=2, stream=is_streamed)
        _ = list(answer) if is_streamed else None
    recorder.close()
    taken = CallLibrary(read(path)).take("hi" if ask is complete else HI, 2)
    assert [(one.answer.text, one.answer.is_cut) for one in taken] == [("Hello, wörld!", True)] * 2


def test_what_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    recorder = Recorder(path)
    with serving_engine(ScriptedEngine(), recorder=recorder) as root:
        assert post(root, {"messages": HI, "n": 0}).status_code == 400
        assert post(root, {"prompt": [1, 2]}, "/v1/completions").status_code == 200
        assert post(root, {"prompt": "hi"}, "/tokenize").status_code == 200
    recorder.close()
    assert path.read_text() == ""


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
CUSTOM = {"type": "custom", "custom": {"name": "a", "input": "x"}}
OLD_CALL = {"name": "a", "arguments": '{"input": "x"}'}


def test_what_no_replay_could_read_is_not_recorded() -> None:
    with pytest.raises(RequestError):
        recorded_request("/v1/chat/completions", {"messages": [IMAGE]})


@pytest.mark.parametrize("calls", [{"tool_calls": [CUSTOM]}, {"function_call": OLD_CALL}])
def test_other_forms_of_calls_are_recorded_as_calls_of_functions(calls: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": None, **calls}
    (recorded,) = recorded_request("/v1/chat/completions", {"messages": [message]})["messages"]
    (call,) = recorded["tool_calls"]
    assert (recorded["content"], call["type"]) == ("", "function")
    assert call["function"] == {"name": "a", "arguments": '{"input": "x"}'}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/responses", {"previous_response_id": "resp_1"}),
        ("/v1/responses", {"conversation": "conv_1"}),
        ("/v1/completions", {"suffix": "}"}),
        ("/v1/completions", {"echo": True}),
    ],
)
def test_calls_whose_messages_are_not_all_that_was_asked(path: str, more: dict[str, Any]) -> None:
    body = {"input": "yes", "prompt": "yes"}
    assert recorded_request(path, body)
    with pytest.raises(RequestError, match=next(iter(more))):
        recorded_request(path, {**body, **more})


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "function_call": {"name": "a", "arguments": "{}"}},
        {
            "content": None,
            "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "a"}}],
        },
    ],
)
def test_answers_that_would_be_recorded_by_half(message: dict[str, Any]) -> None:
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    with pytest.raises(RequestError, match="calls of functions"):
        recorded_response("/v1/chat/completions", json.dumps(answer).encode())


def test_what_waits_is_bounded_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calls.jsonl"
    os.mkfifo(path)  # no reader: the thread blocks in the first call's line
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr("agentspec.gateway.telemetry.recorder.MAX_WAITING_BYTES", 1 << 20)
    recorder = Recorder(path)
    answer = {"choices": [{"index": 0, "message": {"content": "a" * (1 << 19)}, "finish_reason": "stop"}]}
    parts = AnswerParts()
    parts.add(json.dumps(answer).encode())
    call = ApiCall("POST", "/v1/completions", "", "one", "default", Headers(), b"{}", {"prompt": "hi"}, None)
    for _ in range(4):
        recorder.record(call, parts)
    assert recorder.num_left_out == 3
    os.set_blocking(reading, True)
    with os.fdopen(reading, "rb") as read_end:
        assert json.loads(read_end.readline())["prompt"] == "hi"
        recorder.close()
        assert read_end.read() == b""


def test_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't record into"):
        Recorder(tmp_path / "nowhere" / "calls.jsonl")
