"""Conversion of OpenAI's bodies to ``GenerationRequest``: prompt, template variables, sampling, tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from agentspec.errors import RequestError
from agentspec.gateway.openai.call_reader import CLOSE, OPEN
from agentspec.gateway.openai.messages import LeftOut, read_messages
from agentspec.gateway.openai.responses_input import read_input
from agentspec.gateway.openai.schemas import (
    LOGPROBS_INCLUDED,
    ChatBody,
    CompletionBody,
    ResponsesBody,
    SamplingBody,
    TokenizeBody,
)
from agentspec.gateway.openai.tools import ChosenTools, OutputForm, Tools, choose, read_form, read_tools
from agentspec.generation import GenerationRequest, LateStop, PromptOptions, SamplingParams
from agentspec.tags import Tags

# arguments of a template that have fields of their own
_OWN_FIELDS = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message"))
_FIXED = frozenset(("chat_template", "tokenize"))
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_PROMPTS = 128
MAX_TOKEN_ID = 2**31 - 1


def prompt_options(body: ChatBody | CompletionBody | ResponsesBody | TokenizeBody) -> PromptOptions:
    """Return the options. Raises RequestError, which names the field, if they contradict each other."""
    if isinstance(body, CompletionBody):
        return PromptOptions(add_special_tokens=body.add_special_tokens)
    variables = _variables(body)
    if isinstance(body, ResponsesBody):
        return PromptOptions(variables=variables)
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt contradict each other: send one of them",
            param="continue_final_message",
        )
    return PromptOptions(
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        add_special_tokens=body.add_special_tokens,
        variables=variables,
    )


def _variables(body: ChatBody | ResponsesBody | TokenizeBody) -> Mapping[str, Any]:
    """Return the variables. Those in ``chat_template_kwargs`` take precedence, as in vLLM."""
    given = body.chat_template_kwargs or {}
    for name in given.keys() & (_OWN_FIELDS | _FIXED):
        way_out = "send it as a field of its own" if name in _OWN_FIELDS else "it can't be changed"
        param = f"chat_template_kwargs.{name}"
        raise RequestError(f"{param}: {way_out}", param=param)
    own: dict[str, Any] = {}
    if isinstance(body, ChatBody):
        own = {"documents": body.documents, "reasoning_effort": body.reasoning_effort}
    elif isinstance(body, ResponsesBody) and body.reasoning is not None:
        own = {"reasoning_effort": body.reasoning.effort}
    return {name: value for name, value in own.items() if value is not None} | given


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def chat_request(body: ChatBody, tags: Tags, request_id: str, left_out: LeftOut) -> GenerationRequest:
    """Return the request for a chat call, and add omitted parts to ``left_out``. Raises RequestError."""
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    messages = read_messages(body.messages, left_out)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    form = read_form(body)
    chosen = choose(read_tools(body.tools, left_out), body.tool_choice, form, body.parallel_tool_calls)
    sampling = _sampling(
        body,
        chosen.form,
        logprobs=logprobs,
        max_tokens=max_tokens,
        n=body.n,
        grammar=chosen.grammar,
        late_stop=_before_second_call(body, chosen),
    )
    return _request(request_id, messages, sampling, tags, prompt_options(body), chosen.tools)


def responses_request(
    body: ResponsesBody, tags: Tags, request_id: str, left_out: LeftOut
) -> GenerationRequest:
    """Return the request for a responses call, and add what it lacks to ``left_out``. Raises RequestError."""
    if body.top_logprobs and not body.has_logprobs:
        raise RequestError(f"top_logprobs needs {LOGPROBS_INCLUDED!r} in include", param="top_logprobs")
    form = read_form(body)
    chosen = choose(read_tools(body.tools, left_out), body.tool_choice, form, body.parallel_tool_calls)
    sampling = _sampling(
        body,
        chosen.form,
        logprobs=(body.top_logprobs or 0) if body.has_logprobs else None,
        max_tokens=body.max_output_tokens,
        grammar=chosen.grammar,
        late_stop=_before_second_call(body, chosen),
    )
    messages = read_input(body.input, body.instructions, left_out)
    return _request(request_id, messages, sampling, tags, prompt_options(body), chosen.tools)


def completion_requests(body: CompletionBody, tags: Tags, request_id: str) -> list[GenerationRequest]:
    """Return one request per prompt of a completion call. Raises RequestError."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            f"best_of other than n is not supported: {body.best_of!r}",
            param="best_of",
            code="unsupported_parameter",
        )
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = _sampling(body, read_form(body), logprobs=body.logprobs, max_tokens=max_tokens, n=body.n)
    return [
        _request(
            f"{request_id}-{index}" if index else request_id, prompt, sampling, tags, prompt_options(body)
        )
        for index, prompt in enumerate(_prompts(body.prompt))
    ]


def _request(
    request_id: str,
    prompt: Prompt,
    sampling: SamplingParams,
    tags: Tags,
    options: PromptOptions,
    tools: Tools | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling,
        tags=tags,
        tools=tools,
        prompt_options=options,
    )


def _sampling(
    body: SamplingBody,
    form: OutputForm,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    n: int | None = None,
    grammar: str | None = None,
    late_stop: LateStop | None = None,
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
        json_schema=form.json_schema,
        written=form.written,
        constraint_param=form.param,
        grammar=grammar,
        ignore_eos=bool(body.ignore_eos),
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()} or None,
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        bad_words=tuple(body.bad_words or ()),
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        late_stop=late_stop,
    )


def _before_second_call(body: ChatBody | ResponsesBody, chosen: ChosenTools) -> LateStop | None:
    return LateStop(CLOSE, OPEN) if chosen.tools and body.parallel_tool_calls is False else None


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
