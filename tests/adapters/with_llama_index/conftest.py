"""Fixtures for the real LlamaIndex."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import openai
import pytest
import pytest_asyncio

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from llama_index.llms.openai_like import OpenAILike

    from agentspec.adapters.llama_index import instrument


@pytest.fixture
def new_llm(url: str, engine: Any) -> Callable[..., OpenAILike]:
    """Return a function that makes a model."""
    fields = {"model": "scripted", "api_base": url, "api_key": "none", "max_retries": 0}
    return lambda **more: OpenAILike(
        **fields, is_chat_model=True, is_function_calling_model=True, context_window=4096, **more
    )


@pytest_asyncio.fixture
async def llm(new_llm: Callable[..., OpenAILike], url: str) -> AsyncIterator[OpenAILike]:
    """Create a model before any instrumentation, with its own connections."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as asynchronous:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as synchronous:
            yield new_llm(openai_client=synchronous, async_openai_client=asynchronous)


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()
