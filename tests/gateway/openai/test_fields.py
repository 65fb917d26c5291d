"""Every field of OpenAI, vLLM, llama.cpp and Anthropic is honoured, harmless or refused, and says which."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams
from openai.types.responses import ResponseTextConfigParam
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as ResponsesParams
from openai.types.shared_params import Reasoning
from pydantic import BaseModel

from agentspec.gateway.openai.fields import TABLES, FieldRule, Use
from agentspec.gateway.openai.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ResponsesBody,
    TokenizeBody,
)
from agentspec.generation import GenerationRequest, WrittenConstraint
from tests.gateway.openai import published
from tests.gateway.support.scripted import ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
BODIES = dict(
    zip(BASES, (ChatBody, CompletionBody, ResponsesBody, TokenizeBody, DetokenizeBody), strict=True)
)
GENERATING = tuple(BASES)[:3]
READ_WITH_THE_TAGS = {
    *("prediction", "vllm_xargs", "nvext", "agent_hint", "metadata", "session_id", "prompt_cache_key")
}
ASKED: dict[str, Any] = {  # values of refused fields that ask for something, other than True
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "skip_special_tokens": False,
    "include_reasoning": False,
    "parse_tool_calls": False,
    "parse_special": False,
    "add_generation_prompt": False,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "response_format": {"type": "json_object"},
    "text.format": {"type": "json_object"},
    "reasoning_format": "deepseek",
    "truncation": "auto",
    "n": 2,
    "best_of": 2,
    "speed": "fast",
}


Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def ask(url: str) -> Iterator[Ask]:
    """Return a function that posts a body, with one client for all."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:

        def post(body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
            return client.post(path, json=body)

        yield post


def rules(use: Use, *paths: str) -> list[tuple[str, str]]:
    return [
        (path, name) for path in paths or TABLES for name, rule in TABLES[path].items() if rule.use is use
    ]


def with_field(path: str, name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    others = {"json_object": True} if outer == "structured_outputs" else {}
    return {**BASES[path], outer: {**others, inner: value} if inner else value}


def asking(path: str, name: str) -> Any:
    """Return a value of a refused field that asks for something."""
    asked = ASKED.get(name, True)
    return True if asked in TABLES[path][name].off else asked


@pytest.mark.parametrize("path", GENERATING)
def test_every_published_field_has_a_rule(path: str) -> None:
    """Of all APIs and in each: a client may send a field where another endpoint has it."""
    assert published.GENERATING - TABLES[path].keys() == set()


def test_the_other_endpoints_know_their_fields() -> None:
    assert set(published.VLLM_TOKENIZE.split()) <= TABLES["/tokenize"].keys()
    assert set(published.VLLM_DETOKENIZE.split()) <= TABLES["/detokenize"].keys()


@pytest.mark.parametrize("path", GENERATING)
def test_members_with_rules_of_their_own(path: str) -> None:
    for outer, names in published.MEMBERS.items():
        if TABLES[path][outer].use is not Use.REFUSED:
            assert {f"{outer}.{name}" for name in names.split()} <= TABLES[path].keys()


@pytest.mark.parametrize(
    ("params", "names"),
    [
        (ChatParams, published.OPENAI_CHAT),
        (CompletionParams, published.OPENAI_COMPLETIONS),
        (ResponsesParams, published.OPENAI_RESPONSES),
        (ChatCompletionStreamOptionsParam, published.MEMBERS["stream_options"]),
        (ResponseTextConfigParam, published.MEMBERS["text"]),
        (Reasoning, published.MEMBERS["reasoning"]),
    ],
)
def test_the_list_is_that_of_the_installed_package(params: Any, names: str) -> None:
    assert typing.get_type_hints(params).keys() <= set(names.split())


@pytest.mark.parametrize("path", TABLES)
def test_the_schemas_read_what_is_honoured_and_nothing_else(path: str) -> None:
    body: type[BaseModel] = BODIES[path]
    read = {field.alias or name for name, field in body.model_fields.items()}
    honoured = {name for name, rule in TABLES[path].items() if rule.use is Use.HONOURED and "." not in name}
    unread = READ_WITH_THE_TAGS if path in GENERATING else set()
    assert honoured - unread == read - unread


@pytest.mark.parametrize(("path", "name"), rules(Use.REFUSED))
def test_what_is_refused_says_so(ask: Ask, engine: ScriptedEngine, path: str, name: str) -> None:
    num_requests = len(engine.requests)
    answer = ask({"model": "scripted", **with_field(path, name, asking(path, name))}, path)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert error["message"].startswith(f"{name} is not supported: ")
    assert len(engine.requests) == num_requests


@pytest.mark.parametrize("path", TABLES)
def test_what_asks_for_nothing_is_not_refused(ask: Ask, path: str) -> None:
    for rule_path, name in rules(Use.REFUSED, path):
        for value in (None, *TABLES[path][name].off):
            answer = ask({"model": "scripted", **with_field(rule_path, name, value)}, path)
            assert answer.status_code == 200, (name, value, answer.text)


def shape(request: GenerationRequest) -> Any:
    """Return what an engine gets, without ids."""
    return request.prompt, request.sampling, request.tools, request.prompt_options, request.tags.stage


@pytest.mark.parametrize(("path", "name"), rules(Use.HARMLESS, *GENERATING))
def test_what_is_harmless_changes_nothing(ask: Ask, engine: ScriptedEngine, path: str, name: str) -> None:
    answers = []
    for body in (BASES[path], with_field(path, name, "x"), with_field(path, name, None)):
        answer = ask({"model": "scripted", **body}, path)
        assert answer.status_code == 200, answer.text
        answers.append(shape(engine.last))
    assert answers[0] == answers[1] == answers[2]


def test_an_unknown_field_is_ignored(ask: Ask, engine: ScriptedEngine) -> None:
    shapes = []
    for fields in ({}, {"no_such_field": {"a": [1]}}):
        assert ask({"model": "scripted", "messages": HI, **fields}).status_code == 200
        shapes.append(shape(engine.last))
    assert shapes[0] == shapes[1]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
# field, value, what the engine gets
SAMPLING: list[tuple[str, Any, str, Any]] = [
    ("temperature", 0.5, "temperature", 0.5),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 5, "top_k", 5),
    ("top_k", -1, "top_k", 0),
    ("min_p", 0.1, "min_p", 0.1),
    ("seed", -3, "seed", -3),
    ("stop", "x", "stop", ("x",)),
    ("presence_penalty", 0.5, "presence_penalty", 0.5),
    ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
    ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
    ("ignore_eos", True, "ignore_eos", True),
    ("min_tokens", 3, "min_tokens", 3),
    ("stop_token_ids", [5, 6], "stop_token_ids", (5, 6)),
    ("bad_words", ["no"], "bad_words", ("no",)),
    ("allowed_token_ids", [5, 6], "allowed_token_ids", (5, 6)),
    ("logit_bias", {"5": -100, "6": 1.5}, "logit_bias", {5: -100, 6: 1.5}),
    ("logit_bias", {}, "logit_bias", None),
    ("structured_outputs", {"json": SCHEMA}, "json_schema", SCHEMA),
    ("structured_outputs", {"json": '{"type": "null"}'}, "json_schema", {"type": "null"}),
    ("structured_outputs", {"json_object": True}, "json_schema", {}),
    ("structured_outputs", {"regex": "a+"}, "written", WrittenConstraint("regex", "a+")),
    ("structured_outputs", {"choice": ["a", "b"]}, "written", WrittenConstraint("choice", '["a", "b"]')),
    ("structured_outputs", {"grammar": "root ::= x"}, "written", WrittenConstraint("grammar", "root ::= x")),
    ("guided_json", SCHEMA, "json_schema", SCHEMA),
    ("guided_json", '{"type": "null"}', "json_schema", {"type": "null"}),
    ("guided_regex", "a+", "written", WrittenConstraint("regex", "a+")),
    ("guided_choice", ["a"], "written", WrittenConstraint("choice", '["a"]')),
    ("guided_grammar", "start: x", "written", WrittenConstraint("grammar", "start: x")),
    ("grammar", "start: x", "written", WrittenConstraint("grammar", "start: x")),
    ("json_schema", SCHEMA, "json_schema", SCHEMA),
]
CHOICES: list[tuple[str, Any, str, Any]] = [
    ("n", 2, "n", 2),
    ("max_tokens", 7, "max_tokens", 7),
    ("response_format", FORMAT, "json_schema", SCHEMA),
    ("response_format", {"type": "json_object"}, "json_schema", {}),
    ("response_format", {"type": "json_object", "schema": SCHEMA}, "json_schema", SCHEMA),
    ("response_format", {"type": "json_schema", "schema": SCHEMA}, "json_schema", SCHEMA),
    ("response_format", {"type": "text"}, "json_schema", None),
]


@pytest.mark.parametrize(
    ("path", "field", "value", "name", "expected"),
    [
        *((path, *row) for path in GENERATING for row in SAMPLING),
        *((path, *row) for path in GENERATING[:2] for row in CHOICES),
        ("/v1/responses", "max_output_tokens", 7, "max_tokens", 7),
        (
            "/v1/responses",
            "text",
            {"format": {"type": "json_schema", "schema": SCHEMA}},
            "json_schema",
            SCHEMA,
        ),
        ("/v1/chat/completions", "max_completion_tokens", 7, "max_tokens", 7),
        ("/v1/chat/completions", "logprobs", True, "logprobs", 0),
        ("/v1/completions", "logprobs", 3, "logprobs", 3),
    ],
)
def test_what_is_honoured_reaches_the_sampler(
    ask: Ask, engine: ScriptedEngine, path: str, field: str, value: Any, name: str, expected: Any
) -> None:
    answer = ask({"model": "scripted", **BASES[path], field: value}, path)
    assert answer.status_code == 200, answer.text
    assert getattr(engine.last.sampling, name) == expected


@pytest.mark.parametrize(
    ("path", "fields", "variables"),
    [
        (
            "/v1/chat/completions",
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
        ),
        ("/v1/responses", {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ("/v1/chat/completions", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ("/v1/responses", {"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ("/v1/chat/completions", {"documents": [{"text": "a"}]}, {"documents": [{"text": "a"}]}),
        (
            "/v1/chat/completions",
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            {"reasoning_effort": "high"},
        ),
    ],
)
def test_variables_reach_the_chat_template(
    ask: Ask, engine: ScriptedEngine, path: str, fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert ask({"model": "scripted", **BASES[path], **fields}, path).status_code == 200
    assert engine.last.prompt_options.variables == variables


@pytest.mark.parametrize(
    ("fields", "prompt", "continues", "special"),
    [
        ({}, True, False, None),
        ({"add_generation_prompt": False}, False, False, None),
        ({"continue_final_message": True}, False, True, None),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True, None),
        ({"add_special_tokens": True}, True, False, True),
    ],
)
def test_how_a_prompt_ends(
    ask: Ask,
    engine: ScriptedEngine,
    fields: dict[str, Any],
    prompt: bool,
    continues: bool,
    special: bool | None,
) -> None:
    assert ask({"model": "scripted", "messages": HI, **fields}).status_code == 200
    options = engine.last.prompt_options
    assert (options.add_generation_prompt, options.continue_final_message) == (prompt, continues)
    assert options.add_special_tokens is special


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": FORMAT, "guided_json": SCHEMA}, "guided_json"),
        ({"guided_choice": ["a"], "grammar": "start: x"}, "grammar"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": "["}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": True}}, "structured_outputs.json"),
        ({"guided_json": [SCHEMA]}, "guided_json"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_json": "3"}, "guided_json"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"logit_bias": {"5": True}}, "logit_bias.5"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (
            {
                "guided_regex": "a",
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": "required",
            },
            "guided_regex",
        ),
    ],
)
def test_a_wrong_value_names_its_field(ask: Ask, fields: dict[str, Any], param: str) -> None:
    answer = ask({"model": "scripted", "messages": HI, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_rule_says_why() -> None:
    for path, name in (*rules(Use.HARMLESS), *rules(Use.REFUSED)):
        assert TABLES[path][name].note, name
    assert all(isinstance(rule, FieldRule) for table in TABLES.values() for rule in table.values())
