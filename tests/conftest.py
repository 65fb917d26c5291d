"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

with suppress(ImportError):  # the environments of other packages have none
    from hypothesis import HealthCheck, settings

    # how long an example takes depends on what else the machine does
    settings.register_profile("agentspec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("agentspec")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of the random checkpoint of a family, made once. Not to be written to."""
    from tests.checkpoints import make_checkpoint

    return cache(lambda family: make_checkpoint(tmp_path_factory.mktemp(family), family))


@pytest.fixture(scope="session")
def llama_checkpoint(checkpoint: Callable[[str], Path]) -> Path:
    """Directory of a small random Llama with tokenizer and chat template. Not to be written to."""
    return checkpoint("llama")
