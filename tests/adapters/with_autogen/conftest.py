"""Fixtures for the real AutoGen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from autogen_ext.models.openai import OpenAIChatCompletionClient

from agentspec.adapters.autogen import instrument

MODEL_INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
    "multiple_system_messages": True,
}


@pytest.fixture
def new_model(url: str, engine: Any) -> Callable[[], Any]:
    """Return a function that creates another client of a model."""
    more: Any = {"model_info": MODEL_INFO, "max_retries": 0}
    return lambda: OpenAIChatCompletionClient(model="scripted", base_url=url, api_key="none", **more)


@pytest_asyncio.fixture
async def model(new_model: Callable[[], Any]) -> AsyncIterator[Any]:
    """Create a model before any instrumentation."""
    model = new_model()
    yield model
    await model.close()


@pytest.fixture
def instrumented(model: Any) -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()
