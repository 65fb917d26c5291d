"""The small random model that the decoding tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentspec.engine.checkpoint import load_model
from agentspec.engine.model import Transformer
from agentspec.engine.tokenizer import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The models here are tiny: a second thread only waits, and on a busy machine it waits long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def exact_model(llama_checkpoint: Path) -> Transformer:
    """The random Llama in float64.

    The sums behind a logit are added up in an order that depends on the batch's shape, so that its last
    bits differ between a pass with and without drafts. In float32 a near-tie of a random model could
    then go either way, and a test of token identity would be a test of luck. In float64 the noise is
    1e-13, and ties that near do not occur.
    """
    return load_model(llama_checkpoint, dtype=torch.float64)


@pytest.fixture(scope="session")
def tokenizer(llama_checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(llama_checkpoint)
