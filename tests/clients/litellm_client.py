"""Send the requests of ``openai_client.py`` with LiteLLM, and print JSON.

LiteLLM has its own idea of an OpenAI-compatible server.

    python litellm_client.py ROOT TOOLS_ROOT MODEL

Runs in an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import litellm

MESSAGES: Any = [{"role": "user", "content": "How many users are there?"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
NUM_TOKENS = 16  # LiteLLM never asks for fewer in a response


def server(root: str, key: str = "client") -> dict[str, Any]:
    return {"api_base": f"{root}/v1", "api_key": key, "max_retries": 0, "num_retries": 0, "timeout": 30}


def texts(root: str, model: str) -> dict[str, Any]:
    asked = {**server(root), "temperature": 0}
    chat = {**asked, "model": f"openai/{model}", "messages": MESSAGES, "max_tokens": NUM_TOKENS}
    text = {
        **asked,
        "model": f"text-completion-openai/{model}",
        "prompt": "SELECT",
        "max_tokens": NUM_TOKENS,
    }
    response = litellm.responses(
        model=f"openai/{model}",
        input="How many users are there?",
        max_output_tokens=NUM_TOKENS,
        **asked,
    )
    return {
        "chat": litellm.completion(**chat).choices[0].message.content,
        "chat stream": "".join(
            chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **chat)
        ),
        "completion": litellm.text_completion(**text).choices[0].text,
        "response": response.output[0].content[0].text,
    }


def calls(root: str) -> dict[str, Any]:
    answer = litellm.completion(model="openai/scripted", messages=MESSAGES, tools=TOOLS, **server(root))
    choice = answer.choices[0]
    (call,) = choice.message.tool_calls
    return {"tool": [call.function.name, json.loads(call.function.arguments), choice.finish_reason]}


def failure(ask: Callable[[], object]) -> list[Any]:
    try:
        ask()
    except litellm.exceptions.APIError as error:
        return [type(error).__name__, error.status_code]
    except Exception as error:
        return [type(error).__name__, getattr(error, "status_code", None)]
    return ["no error"]


def failures(root: str, model: str) -> dict[str, Any]:
    chat = {"model": f"openai/{model}", "messages": MESSAGES, "max_tokens": 1}
    litellm.completion(**chat, **server(root, "limited"))
    return {
        "no key": failure(lambda: litellm.completion(**chat, **server(root, "unknown"))),
        "no model": failure(lambda: litellm.completion(**{**chat, "model": "openai/gpt-9"}, **server(root))),
        "no value": failure(lambda: litellm.completion(**chat, temperature=-1, **server(root))),
        "too often": failure(lambda: litellm.completion(**chat, **server(root, "limited"))),
    }


if __name__ == "__main__":
    root, tools_root, model = sys.argv[1:]
    found = {**texts(root, model), **calls(tools_root), "errors": failures(root, model)}
    print(json.dumps(found))
