"""Send messages with Anthropic's official client, and print JSON.

    python anthropic_client.py ROOT

Runs in an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic

ASKED: Any = {"model": "scripted", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
TOOLS: Any = [{"name": "weather", "input_schema": {"type": "object"}}]


def client_of(root: str, key: str = "client") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=root, api_key=key, max_retries=0, timeout=30)


def told(message: anthropic.types.Message) -> list[Any]:
    contents = [getattr(block, "text", None) or [block.name, block.input] for block in message.content]
    return [contents, message.stop_reason, message.usage.output_tokens]


def streamed(client: anthropic.Anthropic, **fields: Any) -> list[Any]:
    with client.messages.stream(**{**ASKED, **fields}) as stream:
        return told(stream.get_final_message())


def failure(ask: Callable[[], object]) -> list[Any]:
    try:
        ask()
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.response.headers.get("retry-after")]
    return ["no error"]


def found(root: str) -> dict[str, Any]:
    client, limited = client_of(root), client_of(root, "limited")
    limited.messages.create(**ASKED)
    return {
        "message": told(client.messages.create(**ASKED)),
        "message stream": streamed(client),
        "tool": told(client.messages.create(tools=TOOLS, **ASKED)),
        "tool stream": streamed(client, tools=TOOLS),
        "stage": client.messages.with_raw_response.create(
            extra_headers={"X-AgentSpec-Stage": "flow/a"}, **ASKED
        ).headers["x-agentspec-stage"],
        "errors": {
            "no key": failure(lambda: client_of(root, "unknown").messages.create(**ASKED)),
            "no model": failure(lambda: client.messages.create(**{**ASKED, "model": "gpt-9"})),
            "too often": failure(lambda: limited.messages.create(**ASKED)),
        },
    }


if __name__ == "__main__":
    print(json.dumps({"version": anthropic.__version__, **found(sys.argv[1])}))
