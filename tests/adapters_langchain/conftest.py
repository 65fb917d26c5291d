"""The real LangChain and LangGraph. Where they are not installed, there are no tests here.

``make test-adapters`` runs them, in an environment of their own.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

sys.path.append(str(Path(__file__).parents[1] / "gateway"))  # a running gateway is what its own tests have

try:
    import langchain  # noqa: F401
    import langchain_tests  # noqa: F401
    import langgraph.graph  # noqa: F401
    from langchain_openai import ChatOpenAI
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    from live import serving_engine
    from obliging import ObligingEngine

    from agentspec.adapters.langchain import AgentSpecLLM, ChatAgentSpec, instrument


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, str]]:
    """An engine and the base URL of the gateway in front of it."""
    engine = ObligingEngine()
    with serving_engine(engine) as root:
        yield engine, f"{root}/v1"


@pytest.fixture
def engine(served: tuple[Any, str]) -> Any:
    """It has not been asked anything."""
    engine, _ = served
    engine.requests.clear()
    return engine


@pytest.fixture
def fields(served: tuple[Any, str]) -> dict[str, Any]:
    """What makes a model: ``ChatAgentSpec(**fields)``."""
    _, url = served
    return {"model": "scripted", "base_url": url, "api_key": "none", "max_retries": 0, "timeout": 20}


@pytest.fixture(params=["ChatAgentSpec", "instrument"])
def model(request: pytest.FixtureRequest, fields: dict[str, Any], engine: Any) -> Iterator[Any]:
    """A chat model that tells its stages, one way or the other."""
    if request.param == "ChatAgentSpec":
        yield ChatAgentSpec(**fields)
        return
    model = ChatOpenAI(**fields, stream_usage=True)  # it is there before
    undo = instrument()
    yield model
    undo()


@pytest_asyncio.fixture(loop_scope="module")
async def llm(fields: dict[str, Any], engine: Any) -> AsyncIterator[Callable[..., AgentSpecLLM]]:
    """Makes a model of plain completions; their connections end with the test."""
    made: list[AgentSpecLLM] = []

    def make(**more: Any) -> AgentSpecLLM:
        made.append(AgentSpecLLM(**fields, **more))
        return made[-1]

    yield make
    for one in made:
        one.client._client.close()
        await one.async_client._client.close()


@pytest.fixture
def stages(engine: Any) -> Callable[[], list[str]]:
    """The stages of the calls so far, in order."""
    return lambda: [request.stage.name for request in engine.requests]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all tests of a file: langchain-openai keeps connections for the process."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in here:
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
