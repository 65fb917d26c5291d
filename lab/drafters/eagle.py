"""The EAGLE-3 head (arXiv 2503.01840): one layer that continues the features of the served model.

At position i it reads the served model's features of token i, or its own output there, and the embedding of
token i + 1. From these it predicts token i + 2.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.layer import DecoderLayer, Weights
from agentspec.engine.model.linear import Linear, has_room_to_pack
from agentspec.engine.model.norm import RMSNorm
from agentspec.engine.model.transformer import Transformer, num_parameters
from agentspec.errors import CheckpointError
from lab.drafters.eagle_config import EagleConfig
from lab.drafters.layer_head import LayerHead


class EagleHead(LayerHead):
    """A head for one served model.

    Args:
        config: its shape.
        weights: its tensors.
        target: the served model, whose embeddings it uses unless it has its own.
        target_ids: int64 ``[draft_vocab]``, the served model's id of each token that it can draft.
        has_embeddings: it has embeddings of its own.

    Raises:
        CheckpointError: a tensor is missing or misshapen.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: Weights,
        target: Transformer,
        target_ids: torch.Tensor,
        *,
        has_embeddings: bool = False,
    ) -> None:
        model = config.model
        super().__init__(model, target, config.hidden_layers)
        self._config = config
        self._target_ids: NDArray[np.int32] = target_ids.cpu().numpy().astype(np.int32)
        width = config.target_hidden_size * len(config.hidden_layers)
        if not has_embeddings and model.hidden_size != config.target_hidden_size:
            raise CheckpointError(
                f"a head of hidden size {model.hidden_size} for a model of {config.target_hidden_size} needs "
                "embeddings of its own: embed_tokens.weight is missing"
            )
        with torch.inference_mode():
            shape = (model.vocab_size, model.hidden_size)
            self._embedding = weights.take("embed_tokens.weight", *shape) if has_embeddings else None
            self._features_norms = _features_norms(config, weights)
            self._combine = Linear(weights.take("fc.weight", model.hidden_size, width))
            has_packing = has_room_to_pack(num_parameters(model))
            self._layer = _EagleLayer(config, weights, has_packing)
            self._norm = RMSNorm(weights.take("norm.weight", model.hidden_size), model.rms_norm_eps)
            head = weights.take("lm_head.weight", config.draft_vocab_size, model.hidden_size)
            self._head = Linear(
                head if config.has_normed_output else self._norm.fold(head), has_packing=has_packing
            )

    def read(self, features: torch.Tensor | None) -> torch.Tensor:
        """Return what rows carry whose features ``[rows, layers * target hidden]`` are known."""
        assert features is not None
        with torch.inference_mode():
            for norms in self._features_norms:
                parts = zip(norms, features.chunk(len(norms), 1), strict=True)
                features = torch.cat([norm.whole(part) for norm, part in parts], 1)
            return self._combine(features)

    def log_probs(self, carried: torch.Tensor, level: int = 1) -> torch.Tensor:
        """Return log chances of the next tokens, float32 ``[rows, draft_vocab]``, alike for all levels."""
        with torch.inference_mode():
            rows = carried if self._config.has_normed_output else self._norm(carried)
            return functional.log_softmax(self._head(rows).float(), 1)

    def token_ids(self, drafted: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the served model's ids of tokens by their place in :meth:`log_probs`."""
        return self._target_ids[drafted]

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        return super()._embed(ids) if self._embedding is None else self._embedding.index_select(0, ids)

    def _continued(
        self, embedded: torch.Tensor, carried: torch.Tensor, rotation: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        rows = self._layer.continued(embedded, carried, rotation, plan)
        return self._norm.whole(rows) if self._config.has_normed_output else rows


def _features_norms(config: EagleConfig, weights: Weights) -> list[list[RMSNorm]]:
    """Return the norms of the features before they are combined, in order: of all together, of each layer."""
    size, number = config.target_hidden_size, len(config.hidden_layers)
    norms = []
    if config.has_features_norm:
        norms.append([RMSNorm(weights.take("input_norm.weight", number * size), config.model.rms_norm_eps)])
    if config.has_layer_norms:
        names = [f"fc_norm.{layer}.weight" for layer in range(number)]
        norms.append([RMSNorm(weights.take(name, size), config.model.rms_norm_eps) for name in names])
    return norms


class _EagleLayer(DecoderLayer):
    """The layer: its attention reads embedding and carried features side by side, each behind its norm."""

    def __init__(self, config: EagleConfig, weights: Weights, has_packing: bool) -> None:
        self._has_normed_residual = config.has_normed_residual
        super().__init__(config.model, weights, "midlayer.", has_packing)

    def continued(
        self,
        embedded: torch.Tensor,
        carried: torch.Tensor,
        rotation: torch.Tensor,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """Return the residual stream behind the layer, ``[rows, hidden]``."""
        qkv = self._qkv(torch.cat([self._attention_norm(embedded), self._hidden_norm(carried)], 1))
        if self._has_normed_residual:
            carried = self._hidden_norm.whole(carried)
        return self._behind(0, carried, qkv, rotation, plan)

    @property
    def _num_inputs(self) -> int:
        return 2 * self._config.hidden_size

    def _fold_norm(self, weight: torch.Tensor) -> torch.Tensor:
        """Make the second norm, and return the weight with the scales of both in its columns."""
        size = self._config.hidden_size
        self._hidden_norm = RMSNorm(self._take("hidden_norm.weight", size), self._config.rms_norm_eps)
        embedded, carried = weight[:, :size], weight[:, size:]
        return torch.cat([self._attention_norm.fold(embedded), self._hidden_norm.fold(carried)], 1)
