"""Calls of which clients receive a part of what a vLLM server computes, and what they receive."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx
import pytest

from agentspec.wire import XARGS_FIELD
from benchmarks.vllm.chats import MODEL_NAME, load
from benchmarks.vllm.server import Server

TIMEOUT_S = 300.0
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
TOOLS: dict[str, Any] = {
    "tools": [
        {
            "type": "function",
            "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
}
TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
HA: dict[str, Any] = {"prompt": "ha " * 17 + "ha", "max_tokens": 40}  # the model answers with many "a"
SQL: dict[str, Any] = {"messages": load(7, 81)[2].body["messages"], "max_tokens": 60}  # "Tables: orders(id, "
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 3}


class Case(NamedTuple):
    """A call: its path, and the fields of its body. Its client leaves after ``num_events``, if it does."""

    path: str
    fields: dict[str, Any]
    num_events: int | None = None


CASES = {
    "a stop string": Case(COMPLETION, {**HA, "stop": ["aaa"]}),
    "one that the client gets": Case(COMPLETION, {**HA, "stop": ["aaa"], "include_stop_str_in_output": True}),
    "one behind the least tokens": Case(COMPLETION, {**HA, "stop": ["aa"], "min_tokens": 9}),
    "one that does not come": Case(COMPLETION, {**HA, "stop": ["never"], "max_tokens": 12}),
    "one in a stream": Case(COMPLETION, {**HA, "stop": ["aaaaa"], "stream": True}),
    "one within a token": Case(CHAT, {**SQL, "stop": ["rders(i"]}),
    "several": Case(CHAT, {**SQL, "stop": [", ", "(", "\n"]}),
    "one for several prompts": Case(
        COMPLETION, {**HA, "prompt": [HA["prompt"], "six five four"], "stop": ["aaa", " <"]}
    ),
    "one for several choices": Case(CHAT, {**SQL, **SAMPLED, "stop": ["id"], "n": 3}),
    "a limit": Case(CHAT, {**SQL, "max_tokens": 5}),
    "several choices": Case(CHAT, {**SQL, **SAMPLED, "n": 2}),
}
TOOL_CASES = {
    "a tool call": Case(CHAT, {**SQL, **TOOLS}),
    "a tool call with a stop string": Case(CHAT, {**SQL, **TOOLS, "stop": ["arg"]}),
}
_LONG = {**HA, "max_tokens": 900, "ignore_eos": True, "temperature": 1.0}
BROKEN_OFF = {
    "a stream": Case(COMPLETION, {**_LONG, "stream": True}, 3),
    "a stream with a stop string": Case(COMPLETION, {**_LONG, "stream": True, "stop": ["never"]}, 3),
    "a response": Case(COMPLETION, _LONG, 0),
    "several prompts": Case(COMPLETION, {**_LONG, "prompt": [HA["prompt"], "six"]}, 0),
    "several choices": Case(COMPLETION, {**_LONG, "n": 2, "stop": ["never"]}, 0),
}


class Choice(NamedTuple):
    """What a client received: the tokens up to the one that ended the output, and its text."""

    token_ids: list[int]
    text: str


class Received(NamedTuple):
    """The choices of a call, and the number of output tokens by its usage."""

    choices: list[Choice]
    num_tokens: int


def ask(server: Server, case: Case, **tags: str) -> Received:
    """Send a call with these tags, and return what its client received."""
    xargs: dict[str, Any] = {f"agentspec_{name}": value for name, value in tags.items()}
    if case.num_events is not None:
        xargs["agentspec_max_draft"] = 0  # so it takes seconds
    body = {
        "model": MODEL_NAME,
        "temperature": 0,
        "return_token_ids": True,
        **case.fields,
        XARGS_FIELD: xargs,
    }
    url = f"{server.url}{case.path}"
    if case.num_events is not None:
        _break_off(url, body, case.num_events)
        return Received([], 0)
    if body.get("stream"):
        return _streamed(url, body)
    answer = httpx.post(url, json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    choices = [Choice(one["token_ids"], _text_of(one)) for one in found["choices"]]
    return Received(choices, found["usage"]["completion_tokens"])


def whole(tokenizer: Any, choice: Choice) -> tuple[int, ...]:
    """Return the first tokens of a choice whose text its client has to the end."""
    kept = choice.token_ids
    while kept and not choice.text.startswith(tokenizer.decode(kept, skip_special_tokens=True)):
        kept = kept[:-1]
    return tuple(kept)


def _streamed(url: str, body: dict[str, Any]) -> Received:
    token_ids: list[int] = []
    text, num_tokens = "", 0
    body = {**body, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as answer:
        for line in answer.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": []}
            for one in event["choices"]:
                token_ids += one["token_ids"]
                text += one["text"]
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
    return Received([Choice(token_ids, text)], num_tokens)


def _break_off(url: str, body: dict[str, Any], num_events: int) -> None:
    """Leave after some events of a stream, or while a response is awaited."""
    if not num_events:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=0.5)
        return
    with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as answer:
        for _, _ in zip(range(num_events), answer.iter_lines(), strict=False):
            pass


def _text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])
