"""From OpenAI's bodies to what an engine is asked: ``GenerationRequest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from agentspec.errors import RequestError
from agentspec.gateway.bodies import ChatBody, CompletionBody, GenerationBody, ResponseFormat
from agentspec.gateway.tags import Tags
from agentspec.gateway.text_content import read_text
from agentspec.generation import GenerationRequest, SamplingParams

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_PROMPTS = 128
MAX_TOKEN_ID = 2**31 - 1

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def chat_request(body: ChatBody, tags: Tags, request_id: str) -> GenerationRequest:
    """The one request of a chat call. Raises RequestError."""
    _refuse_unsupported(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    messages = [_message(index, message) for index, message in enumerate(body.messages)]
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    sampling = _sampling(body, logprobs=logprobs, max_tokens=max_tokens)
    return _request(request_id, messages, sampling, body, tags, tools=_tools(body))


def completion_requests(body: CompletionBody, tags: Tags, request_id: str) -> list[GenerationRequest]:
    """One request per prompt of a completion call. Raises RequestError."""
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
    sampling = _sampling(body, logprobs=body.logprobs, max_tokens=max_tokens)
    return [
        _request(f"{request_id}-{index}" if index else request_id, prompt, sampling, body, tags)
        for index, prompt in enumerate(_prompts(body.prompt))
    ]


def _request(
    request_id: str,
    prompt: Prompt,
    sampling: SamplingParams,
    body: GenerationBody,
    tags: Tags,
    tools: list[dict[str, Any]] | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling,
        stage=tags.stage,
        session=tags.session,
        tools=tools,
        max_draft=tags.max_draft,
        min_match=tags.min_match,
        learn=tags.learn,
        prediction=tags.prediction,
    )


def _sampling(body: GenerationBody, *, logprobs: int | None, max_tokens: int | None) -> SamplingParams:
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
        n=body.n or 1,
        json_schema=_json_schema(body.response_format),
        ignore_eos=bool(body.ignore_eos),
    )


def _refuse_unsupported(body: GenerationBody) -> None:
    if body.logit_bias:
        raise RequestError("logit_bias is not supported", param="logit_bias", code="unsupported_parameter")


def _json_schema(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {}
    if wanted.type != "json_schema":
        raise RequestError(
            f"response_format.type must be 'text', 'json_object' or 'json_schema', not {wanted.type!r}",
            param="response_format.type",
        )
    if wanted.json_schema is None:
        raise RequestError("response_format.json_schema is missing", param="response_format.json_schema")
    return wanted.json_schema.schema_


def _tools(body: ChatBody) -> list[dict[str, Any]] | None:
    if body.tool_choice in (None, "auto"):
        return body.tools
    if body.tool_choice == "none":
        return None
    raise RequestError(
        f"tool_choice must be 'auto' or 'none' here, not {body.tool_choice!r}",
        param="tool_choice",
        code="unsupported_parameter",
    )


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message as chat templates expect it: text content, and no role that they do not know."""
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"messages[{index}].role must be a string, not {role!r}", param=f"messages[{index}].role"
        )
    has_calls = _has_tool_calls(message.get("tool_calls"), f"messages[{index}].tool_calls")
    content = message.get("content")
    if content is None and has_calls:
        content = ""  # not null: most templates add it to a text
    content = read_text(content, f"messages[{index}].content")
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def _has_tool_calls(calls: object, param: str) -> bool:
    """True if there are any. Raises RequestError if they are no list of objects."""
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise RequestError(f"{param} must be a list of objects, not {calls!r}", param=param)
    return bool(calls)


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
