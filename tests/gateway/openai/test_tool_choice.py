"""Forced tool calls: the engine can generate only an allowed call, with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from agentspec.engine import EngineConfig, TorchEngine
from agentspec.errors import RequestError
from agentspec.forest import Forest
from agentspec.gateway.openai.tools import choose
from tests.gateway.support.live import client_of, serving_engine
from tests.support.checkpoints import make_tool_checkpoint

CITY = {"properties": {"city": {"enum": ["Paris", "Rome"]}}}
NUMBER = {"properties": {"number": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"enum": [1, 22, 333]}}}
CLOSED = {"type": "object", "additionalProperties": False}
FUNCTIONS: dict[str, Any] = {
    "weather": {"name": "weather", "parameters": {**CITY, **CLOSED, "required": ["city"]}},
    'a "count"': {"name": 'a "count"', "parameters": {**NUMBER, **CLOSED, "required": ["number"]}},
}
TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS.values()]
HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module", params=["text", "special"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """Yield a client of a model for which the tags of calls are text, added tokens or special tokens."""
    path = make_tool_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    config = EngineConfig(
        path, "tiny", dtype="float64", num_slots=1, max_model_len=1024, threads=1, price=0.1
    )
    with serving_engine(TorchEngine(config, Forest())) as root, client_of(root) as client:
        yield client


def forced(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def is_allowed(name: str, arguments: str) -> bool:
    told = json.loads(arguments)
    if name == "weather":
        return told in ({"city": "Paris"}, {"city": "Rome"})
    return told in ({"number": 1}, {"number": 22}, {"number": 333})


@pytest.mark.parametrize("choice", ["required", forced("weather"), forced('a "count"')])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_chat_has_to_call(client: openai.OpenAI, choice: Any, temperature: float) -> None:
    calls = set()
    for max_draft in ("0", "16", "16"):
        answer = client.chat.completions.create(
            model="tiny",
            messages=HI,
            tools=TOOLS,
            tool_choice=choice,
            temperature=temperature,
            seed=5,
            extra_headers={"x-agentspec-max-draft": max_draft},
        ).choices[0]
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        (call,) = answer.message.tool_calls or ()
        assert call.type == "function"
        assert choice in ("required", forced(call.function.name))
        assert is_allowed(call.function.name, call.function.arguments)
        calls.add((call.function.name, call.function.arguments))
    assert temperature == 1 or len(calls) == 1


def test_a_response_has_to_call(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **function} for function in FUNCTIONS.values()]
    for choice in ("required", {"type": "function", "name": "weather"}):
        response = client.responses.create(model="tiny", input="hi", tools=tools, tool_choice=choice)
        (call,) = response.output
        assert call.type == "function_call"
        assert is_allowed(call.name, call.arguments)


def test_a_call_goes_before_a_form_of_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HI,
        tools=TOOLS,
        tool_choice="required",
        response_format={"type": "json_object"},
    )
    assert answer.choices[0].message.tool_calls


def test_a_call_that_speaks_of_the_end_of_calls(client: openai.OpenAI) -> None:
    end = {"properties": {"text": {"const": "</tool_call> is the end"}}, "required": ["text"], **CLOSED}
    tools: Any = [{"type": "function", "function": {"name": "</tool_call>", "parameters": end}}]
    answer = client.chat.completions.create(model="tiny", messages=HI, tools=tools, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "</tool_call>"
    assert json.loads(call.function.arguments) == {"text": "</tool_call> is the end"}


def test_a_schema_that_cannot_be_enforced(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "colour"}}}]
    with pytest.raises(openai.BadRequestError, match="tools: the JSON schema of the tool 'f' can't be used"):
        client.chat.completions.create(model="tiny", messages=HI, tools=tools, tool_choice="required")


ANSWER: dict[str, Any] = {"properties": {"ok": {"type": "boolean"}}, "required": ["ok"], **CLOSED}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}


def test_a_call_or_the_form_of_the_answer(client: openai.OpenAI) -> None:
    for seed in range(6):
        answers = [
            client.chat.completions.create(
                model="tiny",
                messages=HI,
                tools=TOOLS,
                response_format=FORMAT,
                temperature=2,
                seed=seed,
                max_tokens=400,
                extra_headers={"x-agentspec-max-draft": max_draft},
            ).choices[0]
            for max_draft in ("0", "16")
        ]
        told = [(one.message.content, called(one.message), one.finish_reason) for one in answers]
        assert told[0] == told[1]
        content, calls, reason = told[0]
        if calls:
            assert content is None
            assert all(is_allowed(*call) for call in (calls[:-1] if reason == "length" else calls))
        else:
            assert json.loads(content or "") in ({"ok": True}, {"ok": False})


def called(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


@pytest.mark.parametrize(
    "parameters", [{"properties": {"x": {"const": 1}}}, {}, None, {"type": ["object", "null"]}]
)
def test_the_arguments_are_an_object_even_if_the_schema_does_not_say_so(
    client: openai.OpenAI, parameters: Any
) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    answer = client.chat.completions.create(
        model="tiny", messages=HI, tools=tools, tool_choice=forced("f"), max_tokens=60, temperature=0
    )
    ((name, arguments),) = called(answer.choices[0].message)
    assert name == "f"
    assert arguments.startswith("{")


def test_a_forced_call_is_streamed(client: openai.OpenAI) -> None:
    text = "x" * 200
    const = {"properties": {"text": {"const": text}}, "required": ["text"], **CLOSED}
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": const}}]
    asked: Any = {"model": "tiny", "messages": HI, "tools": tools, "tool_choice": "required"}
    stream = client.chat.completions.create(
        **asked, stream=True, extra_headers={"x-agentspec-max-draft": "0"}
    )
    parts = [call.function.arguments for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    assert json.loads("".join(parts)) == {"text": text}
    assert len(parts) > 10


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        (None, "required", "asks for a tool, but tools has none"),
        ([], "required", "asks for a tool, but tools has none"),
        ([{"type": "function", "function": {}}], "required", "asks for a tool, but tools has none"),
        (TOOLS, forced("gone"), "asks for the tool 'gone', but tools has none"),
        (TOOLS, "always", "must be 'auto', 'none', 'required' or a function by its name, not 'always'"),
        (TOOLS, {"type": "function"}, "by its name, not {'type': 'function'}"),
        (TOOLS, {"type": "function", "function": "f"}, "by its name, not"),
    ],
)
def test_a_bad_choice(tools: Any, choice: Any, said: str) -> None:
    with pytest.raises(RequestError, match="tool_choice") as refused:
        choose(tools, choice)
    assert said in str(refused.value)
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize("parameters", ["x", True, [1]])
def test_parameters_that_are_no_schema(parameters: Any) -> None:
    with pytest.raises(RequestError, match="the parameters of the tool 'f' must be an object"):
        choose([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required")
