"""The small random model that the decoding tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread. The models are tiny, so a second thread only waits, and long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def exact_model(llama_checkpoint: Path) -> Transformer:
    """Load the random Llama in float64.

    The order of the sums behind a logit depends on the batch's shape. A logit's last bits therefore differ
    between a pass with and without drafts. In float32 this noise could decide a near-tie of a random model,
    and a test of token identity would depend on luck. In float64 the noise is 1e-13, and no ties are that
    near.
    """
    return load_model(llama_checkpoint, dtype=torch.float64)


@pytest.fixture(scope="session")
def tokenizer(llama_checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(llama_checkpoint)
