"""Fixtures for the real AG2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from ag2.config import OpenAIConfig

from agentspec.adapters.ag2 import instrument

Connected = Callable[[], AbstractAsyncContextManager[OpenAIConfig]]


@pytest.fixture
def connected(url: str, engine: Any) -> Connected:
    """Open connections to the engine's model in any event loop. AG2 never closes its own."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[OpenAIConfig]:
        async with httpx2.AsyncClient(timeout=20) as client:
            yield OpenAIConfig(
                model="scripted", base_url=url, api_key="none", max_retries=0, http_client=client
            )

    return connect


@pytest_asyncio.fixture
async def config(connected: Connected) -> AsyncIterator[OpenAIConfig]:
    """Open a connection in the test's own event loop."""
    async with connected() as config:
        yield config


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()
