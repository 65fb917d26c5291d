"""A drafting head of one decoder layer: what EAGLE-3 and MTP heads have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.rotary import RotaryTable
from agentspec.engine.model.transformer import Transformer


class LayerHead(ABC):
    """The part of a :class:`~lab.drafters.model_drafter.DraftNetwork` that needs no weights.

    Args:
        shape: of its layer, as of a model of one layer.
        target: the served model.
        hidden_layers: layers of the served model whose inputs it reads.

    Attributes:
        vocab_size: of the served model.
        hidden_layers: as above.
        most_levels: None: it can draft any number of tokens.
    """

    def __init__(self, shape: ModelConfig, target: Transformer, hidden_layers: tuple[int, ...]) -> None:
        self.vocab_size = target.config.vocab_size
        self.hidden_layers = hidden_layers
        self.most_levels: int | None = None
        self._shape = shape
        self._target = target
        self._rotary = RotaryTable(shape, target.device)

    def make_cache(self, num_slots: int, max_len: int) -> KVCache:
        """Return a cache of its own keys and values, for as many slots as the served model has."""
        return KVCache(self._shape, num_slots, max_len, self._target.dtype, self._target.device)

    def forward(
        self, segments: Sequence[Segment], carried: torch.Tensor, cache: KVCache | None
    ) -> torch.Tensor:
        """Return what each row hands on to the next, ``[rows, hidden]``.

        Args:
            segments: the tokens after those that the rows stand for.
            carried: ``[rows, hidden]``, of ``read``, or of this method for the row of the parent.
        """
        assert cache is not None
        cache.check_bounds(segments)
        with torch.inference_mode():
            ids = torch.from_numpy(np.concatenate([segment.token_ids for segment in segments]))
            plan = AttentionPlan(segments, cache, (None,))
            embedded = self._embed(ids.to(self._target.device))
            return self._continued(embedded, carried, self._rotary.of(segments), plan)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings ``[rows, hidden]`` of int tokens ``[rows]``: the served model's."""
        return self._target.embed(ids)

    @abstractmethod
    def _continued(
        self, embedded: torch.Tensor, carried: torch.Tensor, rotation: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        """Return what rows hand on, ``[rows, hidden]``, from the next tokens and what the rows carry."""
