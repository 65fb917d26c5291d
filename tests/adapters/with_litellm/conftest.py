"""Fixtures for the real LiteLLM, without network look-ups and with its clients closed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import

import litellm


@pytest.fixture(scope="module", autouse=True)
def _clients() -> Iterator[None]:
    yield
    litellm.in_memory_llm_clients_cache.flush_cache()
