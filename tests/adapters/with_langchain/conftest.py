"""Fixtures for the real LangChain and LangGraph."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_openai import ChatOpenAI

from agentspec.adapters.langchain import AgentSpecLLM, ChatAgentSpec, instrument


@pytest.fixture
def fields(url: str) -> dict[str, Any]:
    """Return the arguments of a model: ``ChatAgentSpec(**fields)``."""
    return {"model": "scripted", "base_url": url, "api_key": "none", "max_retries": 0, "timeout": 20}


@pytest.fixture(params=["ChatAgentSpec", "instrument"])
def model(request: pytest.FixtureRequest, fields: dict[str, Any], engine: Any) -> Iterator[Any]:
    """Yield a chat model that tags its calls, by our class or by instrumentation."""
    if request.param == "ChatAgentSpec":
        yield ChatAgentSpec(**fields)
        return
    model = ChatOpenAI(**fields, stream_usage=True)  # made before instrumentation
    undo = instrument()
    yield model
    undo()


@pytest_asyncio.fixture(loop_scope="module")
async def llm(fields: dict[str, Any], engine: Any) -> AsyncIterator[Callable[..., AgentSpecLLM]]:
    """Yield a function that makes plain completion models. Their connections close with the test."""
    made: list[AgentSpecLLM] = []

    def make(**more: Any) -> AgentSpecLLM:
        made.append(AgentSpecLLM(**fields, **more))
        return made[-1]

    yield make
    for one in made:
        one.client._client.close()
        await one.async_client._client.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Use one event loop for all tests of a file: langchain-openai keeps connections for the process."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in here:
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
