"""Call every endpoint with OpenAI's official client, and print the results as JSON.

    python openai_client.py ROOT TOOLS_ROOT MODEL

Runs in an environment of its own, which has that client but not AgentSpec.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import openai

MESSAGES: Any = [{"role": "user", "content": "How many users are there?"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
NUM_TOKENS = 16


def client_of(root: str, key: str = "client") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{root}/v1", api_key=key, max_retries=0, timeout=30)


def texts(client: openai.OpenAI, model: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": model, "temperature": 0}
    chat = {**asked, "messages": MESSAGES, "max_tokens": NUM_TOKENS}
    text = {**asked, "prompt": "SELECT", "max_tokens": NUM_TOKENS}
    response = {**asked, "input": "How many users are there?", "max_output_tokens": NUM_TOKENS}
    return {
        "chat": client.chat.completions.create(**chat).choices[0].message.content,
        "chat stream": "".join(
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(stream=True, **chat)
            if chunk.choices
        ),
        "completion": client.completions.create(**text).choices[0].text,
        "completion stream": "".join(
            chunk.choices[0].text for chunk in client.completions.create(stream=True, **text) if chunk.choices
        ),
        "response": client.responses.create(**response).output_text,
        "response stream": "".join(
            event.delta
            for event in client.responses.create(stream=True, **response)
            if event.type == "response.output_text.delta"
        ),
        "models": [model.id for model in client.models.list()],
        "model": client.models.retrieve(model).id,
        "stage": client.chat.completions.with_raw_response.create(
            extra_headers={"X-AgentSpec-Stage": "flow/a"}, **chat
        ).headers["x-agentspec-stage"],
    }


def calls(client: openai.OpenAI) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "scripted", "messages": MESSAGES, "tools": TOOLS}
    whole = client.chat.completions.create(**asked).choices[0]
    name, arguments = "", ""
    for chunk in client.chat.completions.create(stream=True, **asked):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    (call,) = whole.message.tool_calls or []
    return {
        "tool": [call.function.name, json.loads(call.function.arguments), whole.finish_reason],
        "tool stream": [name, json.loads(arguments)],
    }


def failure(ask: Callable[[], object]) -> list[Any]:
    try:
        ask()
    except openai.APIStatusError as error:
        return [
            type(error).__name__,
            error.status_code,
            error.code,
            error.response.headers.get("retry-after"),
        ]
    return ["no error"]


def failures(root: str, model: str) -> dict[str, Any]:
    client, limited = client_of(root), client_of(root, "limited")
    limited.models.list()
    return {
        "no key": failure(lambda: client_of(root, "unknown").models.list()),
        "no model": failure(lambda: client.chat.completions.create(model="gpt-9", messages=MESSAGES)),
        "no value": failure(
            lambda: client.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
        ),
        "too often": failure(lambda: limited.models.list()),
    }


if __name__ == "__main__":
    root, tools_root, model = sys.argv[1:]
    found = {**texts(client_of(root), model), **calls(client_of(tools_root)), "errors": failures(root, model)}
    print(json.dumps({"version": openai.__version__, **found}))
