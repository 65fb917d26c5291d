"""``/tokenize`` and ``/detokenize`` in vLLM's form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.messages import read_messages
from agentspec.gateway.openai.schemas import DetokenizeBody, TokenizeBody
from agentspec.gateway.openai.to_generation import prompt_options
from agentspec.gateway.openai.tools import read_tools
from agentspec.generation import Engine


async def tokenize(engine: Engine, body: TokenizeBody) -> dict[str, Any]:
    """Return the token ids of a prompt or of messages. Raises RequestError."""
    return await asyncio.to_thread(_tokens, engine, body)


async def detokenize(engine: Engine, body: DetokenizeBody) -> dict[str, Any]:
    """Return the text of token ids. Raises RequestError."""
    return {"prompt": await asyncio.to_thread(engine.detokenize, body.tokens)}


def _tokens(engine: Engine, body: TokenizeBody) -> dict[str, Any]:
    tokens = engine.tokenize(
        _prompt(body),
        tools=read_tools(body.tools),
        options=prompt_options(body),
    )
    return {
        "count": len(tokens),
        "max_model_len": engine.model.max_model_len,
        "tokens": tokens,
        "token_strs": engine.token_names(tokens) if body.return_token_strs else None,
    }


def _prompt(body: TokenizeBody) -> str | list[Mapping[str, Any]]:
    if body.messages is not None and body.prompt is None:
        return [*read_messages(body.messages)]
    if body.prompt is not None and body.messages is None:
        return body.prompt
    raise RequestError("give either prompt or messages", param="prompt")
