"""What a body asks of the making of its prompt: variables of the chat template, and how the prompt ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.schemas import ChatBody, CompletionBody, ResponsesBody, TokenizeBody
from agentspec.generation import PromptOptions

# arguments of a template that have fields of their own
_OWN_FIELDS = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message"))
_FIXED = frozenset(("chat_template", "tokenize"))


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
