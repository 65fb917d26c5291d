"""Fixtures for the real CrewAI, with telemetry off and its files in a folder of the tests."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["CREWAI_STORAGE_DIR"] = tempfile.mkdtemp(prefix="crewai-")  # read on import
os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from crewai import LLM

    from agentspec.adapters.crewai import instrument


@pytest.fixture
def llm(url: str, engine: Any) -> Any:
    """Create a model before any instrumentation."""
    return LLM(model="openai/scripted", base_url=url, api_key="none", max_retries=0)


@pytest.fixture
def instrumented(llm: Any) -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()
