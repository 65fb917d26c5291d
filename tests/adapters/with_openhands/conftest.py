"""Fixtures for the real OpenHands: agents, tools, conversations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise importing LiteLLM uses the network
os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"

from openhands.sdk import LLM

from agentspec.adapters.openhands import instrument
from tests.adapters.with_openhands.acting import ActingEngine
from tests.gateway.support.live import serving_engine


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, str]]:
    """Yield an engine that plays the agents' parts, and the base URL of the gateway in front of it."""
    engine = ActingEngine()
    with serving_engine(engine) as root:
        yield engine, f"{root}/v1"


@pytest.fixture
def engine(served: tuple[Any, str]) -> Any:
    """Return the engine with no requests and no plan."""
    engine, _ = served
    engine.reset()
    return engine


@pytest.fixture
def model(url: str) -> Callable[..., LLM]:
    """Return a function that makes a model: ``model(usage_id="condenser")``."""

    def make(**fields: Any) -> LLM:
        given = {"model": "openai/scripted", "base_url": url, "api_key": "none", "num_retries": 0}
        return LLM(**{**given, **fields})

    return make


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument(workflow="repair")
    yield
    undo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of OpenHands and LiteLLM about unknown prices and their own deprecated calls."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
