"""Recorded calls behind a real gateway, with the embedded engine and the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentspec import Forest, ForestConfig
from agentspec.engine import EngineConfig, TorchEngine
from agentspec.gateway import EmbeddedUpstream
from agentspec.recorded import CallLibrary, ReplayEngine, read
from tests.gateway.support.live import client_of, post, serving

LS: dict[str, Any] = {"name": "ls", "arguments": '{"path":"/tmp/run-1","all":true}'}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "You repair what is broken. " * 100}  # beyond the checkpoint's context
ASKED = [SYSTEM, {"role": "user", "content": "What is in /tmp/run-1?"}]
CALLED = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [{"id": "call_7f3a", "type": "function", "function": LS}],
}
FOUND = {"role": "tool", "tool_call_id": "call_7f3a", "content": "a.py\nb.py  \nin 0.31s"}
SAID = "Two files: a.py and b.py, zażółć."
RECORDS = [
    {"messages": ASKED, "response": CALLED, "stage": "bugs/agent"},
    {"messages": [*ASKED, CALLED, FOUND], "response": SAID},
    {"messages": [{"role": "user", "content": "again?"}], "response": "first"},
    {"messages": [{"role": "user", "content": "again?"}], "response": {"content": "second"}},
    {"prompt": "SELECT", "response": " 1;"},
]


@pytest.fixture(scope="module")
def url(llama_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    trace = tmp_path_factory.mktemp("trace") / "calls.jsonl"
    trace.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    config = EngineConfig(
        llama_checkpoint, served_name="shape", max_model_len=8192, threads=1, is_replaying=True
    )
    engine = ReplayEngine(TorchEngine(config, Forest(ForestConfig())), CallLibrary(read(trace)))
    with serving(EmbeddedUpstream(engine, any_model=True)) as root:
        yield root


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with client_of(url) as opened:
        yield opened


def chat(client: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    return client.chat.completions.create(model="gpt-4o", messages=messages, tools=TOOLS, **fields)


def test_a_session_with_calls_of_tools(client: openai.OpenAI, url: str) -> None:
    headers = {"X-AgentSpec-Stage": "bugs/agent"}
    choice = chat(client, ASKED, extra_headers=headers, max_tokens=1).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    (call,) = choice.message.tool_calls
    assert call.function.name == "ls"
    assert json.loads(call.function.arguments) == json.loads(LS["arguments"])
    found = {"role": "tool", "tool_call_id": call.id, "content": "a.py\nb.py\nin 0.72s"}
    messages = [*ASKED, choice.message.to_dict(), found]
    choice = chat(client, messages, extra_headers=headers).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", SAID)
    assert not choice.message.tool_calls
    metrics = httpx.get(f"{url}/metrics").text
    assert 'agentspec_requests_total{stage="bugs/agent",tenant="default"} 2.0' in metrics


def test_a_session_as_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="gpt-4o", messages=ASKED, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content == "I look."
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "ls"
    chunks = chat(client, [*ASKED, CALLED, FOUND], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID


def test_what_was_recorded_several_times_comes_in_turn(client: openai.OpenAI) -> None:
    again = [{"role": "user", "content": "again?"}]
    assert [chat(client, again).choices[0].message.content for _ in range(3)] == ["first", "second", "first"]
    both = chat(client, again, n=2).choices
    assert [choice.message.content for choice in both] == ["second", "first"]


def test_text(client: openai.OpenAI) -> None:
    choice = client.completions.create(model="any", prompt="SELECT").choices[0]
    assert (choice.text, choice.finish_reason) == (" 1;", "stop")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (
            [*ASKED, CALLED, {**FOUND, "content": "nothing"}],
            "the nearest is line 2: messages[3] (tool) differs",
        ),
        ([SYSTEM, {"role": "user", "content": "Why?"}], "the nearest is line 1: messages[1] (user) differs"),
        ([*ASKED, CALLED], "line 2: the same up to its end, but with 4 messages"),
    ],
)
def test_what_was_not_recorded(url: str, messages: list[Any], said: str) -> None:
    answer = post(url, {"messages": messages, "tools": TOOLS})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "unrecorded_call", "messages")
    assert said in error["message"]
    assert "nothing" not in error["message"]
