"""The real LiteLLM, which is to look nothing up on the net, and to close what it keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it reads this when it is imported

import litellm


@pytest.fixture(scope="module", autouse=True)
def _clients() -> Iterator[None]:
    yield
    litellm.in_memory_llm_clients_cache.flush_cache()
