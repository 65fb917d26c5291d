"""A smaller model of the same vocabulary that drafts (Leviathan et al., arXiv 2211.17192).

With a tree it drafts as SpecInfer (arXiv 2305.09781) does, from one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from agentspec.engine.batch import Segment
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError


class DraftModel:
    """A :class:`~lab.drafters.model_drafter.DraftNetwork` that reads the text alone.

    Args:
        model: makes the drafts.
        target: the served model.

    Raises:
        CheckpointError: their vocabularies have different sizes.
    """

    hidden_layers: tuple[int, ...] = ()
    most_levels: int | None = None

    def __init__(self, model: Transformer, target: Transformer) -> None:
        if model.config.vocab_size != target.config.vocab_size:
            raise CheckpointError(
                f"the draft model has {model.config.vocab_size} tokens, the served model "
                f"{target.config.vocab_size}"
            )
        self.vocab_size = target.config.vocab_size
        self._model = model

    def make_cache(self, num_slots: int, max_len: int) -> KVCache:
        """Return a cache of its own keys and values, for as many slots as the served model has."""
        return KVCache(self._model.config, num_slots, max_len, self._model.dtype, self._model.device)

    def read(self, features: torch.Tensor | None) -> torch.Tensor:
        """Return nothing: its rows carry nothing."""
        return torch.empty(0)

    def forward(
        self, segments: Sequence[Segment], carried: torch.Tensor, cache: KVCache | None
    ) -> torch.Tensor:
        """Return the residual stream behind the last layer, ``[rows, hidden]``."""
        assert cache is not None
        silent = [replace(segment, logits_from=len(segment)) for segment in segments]
        hidden = self._model.run(silent, cache, (self._model.config.num_layers,)).hidden
        assert hidden is not None
        return hidden

    def log_probs(self, carried: torch.Tensor, level: int = 1) -> torch.Tensor:
        """Return log chances of the next tokens, float32 ``[rows, vocab]``, alike for all levels."""
        return functional.log_softmax(self._model.logits(carried), 1)

    def token_ids(self, drafted: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the tokens as int32: both vocabularies are the same."""
        return drafted.astype(np.int32)
