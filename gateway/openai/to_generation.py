"""Conversion of OpenAI's bodies to ``GenerationRequest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from agentspec.errors import RequestError
from agentspec.gateway.openai.left_out import LeftOut
from agentspec.gateway.openai.messages import read_messages
from agentspec.gateway.openai.responses_input import read_input
from agentspec.gateway.openai.schemas import (
    LOGPROBS_INCLUDED,
    ChatBody,
    CompletionBody,
    GenerationBody,
    ResponsesBody,
    SamplingBody,
)
from agentspec.gateway.openai.tools import Tools, choose, read_tools
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.tags import Tags

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_PROMPTS = 128
MAX_TOKEN_ID = 2**31 - 1
NOTHING_KEPT = "nothing is kept here between two calls: send the whole input"
RESPONSES_REFUSED = {
    "previous_response_id": NOTHING_KEPT,
    "conversation": NOTHING_KEPT,
    "prompt": "no prompts are stored here: send instructions and input",
    "background": "a response is returned by its call here, or as a stream",
    "messages": "in the responses API its name is input",
    "max_tokens": "in the responses API its name is max_output_tokens",
    "response_format": "in the responses API its name is text.format",
}

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def chat_request(body: ChatBody, tags: Tags, request_id: str, left_out: LeftOut) -> GenerationRequest:
    """Return the request for a chat call, and add what it lacks to ``left_out``. Raises RequestError."""
    _refuse_unsupported(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    messages = read_messages(body.messages, left_out)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    chosen = choose(read_tools(body.tools, left_out), body.tool_choice)
    sampling = _sampling(
        body,
        logprobs=logprobs,
        max_tokens=max_tokens,
        n=body.n,
        json_schema=_response_schema(body),
        grammar=chosen.grammar,
    )
    return _request(request_id, messages, sampling, tags, chosen.tools)


def responses_request(
    body: ResponsesBody, tags: Tags, request_id: str, left_out: LeftOut
) -> GenerationRequest:
    """Return the request for a responses call, and add what it lacks to ``left_out``. Raises RequestError."""
    _refuse_unsupported(body)
    for name, reason in RESPONSES_REFUSED.items():
        if getattr(body, name):
            raise RequestError(f"{name} is not supported: {reason}", param=name, code="unsupported_parameter")
    if body.top_logprobs and not body.has_logprobs:
        raise RequestError(f"top_logprobs needs {LOGPROBS_INCLUDED!r} in include", param="top_logprobs")
    chosen = choose(read_tools(body.tools, left_out), body.tool_choice)
    sampling = _sampling(
        body,
        logprobs=(body.top_logprobs or 0) if body.has_logprobs else None,
        max_tokens=body.max_output_tokens,
        json_schema=_text_schema(body),
        grammar=chosen.grammar,
    )
    messages = read_input(body.input, body.instructions, left_out)
    return _request(request_id, messages, sampling, tags, chosen.tools)


def completion_requests(body: CompletionBody, tags: Tags, request_id: str) -> list[GenerationRequest]:
    """Return one request per prompt of a completion call. Raises RequestError."""
    _refuse_unsupported(body)
    if body.echo:
        raise RequestError("echo is not supported", param="echo", code="unsupported_parameter")
    if body.suffix:
        raise RequestError("suffix is not supported", param="suffix", code="unsupported_parameter")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            f"best_of other than n is not supported: {body.best_of!r}",
            param="best_of",
            code="unsupported_parameter",
        )
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = _sampling(
        body, logprobs=body.logprobs, max_tokens=max_tokens, n=body.n, json_schema=_response_schema(body)
    )
    return [
        _request(f"{request_id}-{index}" if index else request_id, prompt, sampling, tags)
        for index, prompt in enumerate(_prompts(body.prompt))
    ]


def _request(
    request_id: str,
    prompt: Prompt,
    sampling: SamplingParams,
    tags: Tags,
    tools: Tools | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling,
        tags=tags,
        tools=tools,
    )


def _sampling(
    body: SamplingBody,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    n: int | None = None,
    json_schema: Mapping[str, Any] | None,
    grammar: str | None = None,
) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),  # vLLM writes "off" as -1
        min_p=body.min_p or 0.0,
        seed=body.seed,
        stop=tuple(body.stop or ()),
        max_tokens=max_tokens,
        logprobs=logprobs,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        n=n or 1,
        json_schema=json_schema,
        grammar=grammar,
        ignore_eos=bool(body.ignore_eos),
    )


def _refuse_unsupported(body: SamplingBody) -> None:
    if body.logit_bias:
        raise RequestError("logit_bias is not supported", param="logit_bias", code="unsupported_parameter")


def _response_schema(body: GenerationBody) -> Mapping[str, Any] | None:
    wanted = body.response_format
    if wanted is None:
        return None
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    return _json_schema(wanted.type, schema, "response_format", "json_schema")


def _text_schema(body: ResponsesBody) -> Mapping[str, Any] | None:
    wanted = None if body.text is None else body.text.format
    return None if wanted is None else _json_schema(wanted.type, wanted.schema_, "text.format", "schema")


def _json_schema(
    kind: str, schema: Mapping[str, Any] | None, param: str, schema_name: str
) -> Mapping[str, Any] | None:
    """Return the schema for ``SamplingParams``. Errors name the fields ``param`` and ``schema_name``."""
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise RequestError(
            f"{param}.type must be 'text', 'json_object' or 'json_schema', not {kind!r}",
            param=f"{param}.type",
        )
    if schema is None:
        raise RequestError(f"{param}.{schema_name} is missing", param=f"{param}.{schema_name}")
    return schema


def _prompts(prompt: object) -> list[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    if _are_token_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if len(prompt) > MAX_PROMPTS:
            raise RequestError(f"at most {MAX_PROMPTS} prompts at a time, not {len(prompt)}", param="prompt")
        if all(isinstance(one, str) for one in prompt) or all(_are_token_ids(one) for one in prompt):
            return prompt
    raise RequestError(
        "prompt must be a string, a list of strings, a list of token ids, or a list of those", param="prompt"
    )


def _are_token_ids(prompt: object) -> TypeGuard[list[int]]:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in prompt)
    )
