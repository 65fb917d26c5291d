"""Texts to train heads on, and what the served model computes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A batch of texts, padded.

    Attributes:
        ids: int64 ``[texts, tokens]``.
        is_output: bool, the same shape: the tokens that the served model writes. False for padding.
    """

    ids: torch.Tensor
    is_output: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """A batch of texts as the served model reads them.

    Attributes:
        features: ``[texts, tokens, layers * hidden]``.
        chances: float32 ``[texts, tokens, vocab]``, its distribution of the token after each one.
    """

    texts: Texts
    features: torch.Tensor
    chances: torch.Tensor


class Observer:
    """Reads batches with a served model.

    Args:
        hidden_layers: layers whose inputs are the features, as in ``Transformer.run``.
    """

    def __init__(self, model: Transformer, hidden_layers: tuple[int, ...]) -> None:
        self._model = model
        self._layers = hidden_layers
        self._cache: KVCache | None = None

    def observe(self, texts: Texts) -> Observed:
        """Read a batch. Padding is read as well, behind each text."""
        number, size = texts.ids.shape
        cache = self._cache
        if cache is None or cache.num_slots < number or cache.max_len < size:
            cache = self._cache = KVCache(
                self._model.config, number, size, self._model.dtype, self._model.device
            )
        rows = texts.ids.numpy().astype(np.int32)
        passed = self._model.run([Segment(i, 0, row) for i, row in enumerate(rows)], cache, self._layers)
        assert passed.hidden is not None
        features = passed.hidden.clone().view(number, size, -1)  # a clone is no inference tensor
        chances = torch.softmax(passed.logits.clone(), 1).view(number, size, -1)
        return Observed(texts, features, chances)


def ahead(flags: torch.Tensor, distance: int) -> torch.Tensor:
    """Return the flag of the token so far ahead of each one; False beyond the end."""
    moved = torch.zeros_like(flags)
    moved[:, :-distance] = flags[:, distance:]
    return moved
