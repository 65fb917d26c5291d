"""What is recorded can be replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from live import client_of, post, serving_engine, serving_proxy
from scripted import ScriptedEngine

from agentspec.errors import ConfigError
from agentspec.gateway import Recorder
from agentspec.recorded import CallLibrary, read

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


def test_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't record into"):
        Recorder(tmp_path / "nowhere" / "calls.jsonl")
