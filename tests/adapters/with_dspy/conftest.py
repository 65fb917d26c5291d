"""Fixtures for the real DSPy, with its files in a folder of the tests."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="dspy-")  # read on import
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # do not fetch prices
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import dspy
    import litellm  # noqa: F401 (it warns on import)

    from agentspec.adapters.dspy import instrument


@pytest.fixture(params=["lm15", "litellm"])
def model(request: pytest.FixtureRequest, url: str, engine: Any) -> Iterator[dspy.LM]:
    """Create a model before any instrumentation, for DSPy's own client and for LiteLLM's."""
    model = dspy.LM(
        "openai/scripted", api_base=url, api_key="none", cache=False, num_retries=0, engine=request.param
    )
    with dspy.context(lm=model):
        yield model
    model.close()


@pytest.fixture
def instrumented(model: dspy.LM) -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()
