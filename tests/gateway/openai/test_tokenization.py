from __future__ import annotations

from typing import Any

import pytest

from agentspec.generation import PromptOptions
from tests.gateway.support.live import post
from tests.gateway.support.scripted import ScriptedEngine

HI: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
READ: list[Any] = [{"role": "user", "content": "hi"}]


def test_a_prompt(url: str, engine: ScriptedEngine) -> None:
    answer = post(url, {"model": "scripted", "prompt": "hé"}, "/tokenize").json()
    assert answer == {"count": 2, "max_model_len": 4096, "tokens": [104, 233], "token_strs": None}
    assert engine.tokenized[-1] == (
        "hé",
        {"tools": None, "options": PromptOptions()},
    )


def test_messages(url: str, engine: ScriptedEngine) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    fields = {"add_generation_prompt": False, "add_special_tokens": True, "return_token_strs": True}
    asked = {"messages": HI, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}, **fields}
    answer = post(url, asked, "/tokenize").json()
    options = PromptOptions(
        add_generation_prompt=False, add_special_tokens=True, variables={"enable_thinking": False}
    )
    assert engine.tokenized[-1] == (READ, {"tools": tools, "options": options})
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["token_strs"][0] == chr(answer["tokens"][0])


def test_back_to_text(url: str) -> None:
    assert post(url, {"model": "scripted", "tokens": [104, 233]}, "/detokenize").json() == {"prompt": "hé"}
    assert post(url, {"tokens": []}, "/detokenize").json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"content": "hi"}]}, "messages[0].role"),
        ("/tokenize", {"messages": HI, "chat_template": "{{ messages }}"}, "chat_template"),
        (
            "/tokenize",
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**31]}, "tokens"),
    ],
)
def test_what_is_refused_names_the_field(url: str, path: str, fields: dict[str, Any], param: str) -> None:
    answer = post(url, fields, path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
