"""EAGLE-3 in training."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from agentspec.engine.model.config import ModelConfig
from lab.drafters.training.unrolled import TrainableLayer, UnrolledAttention, UnrolledHead


class TrainableEagle(UnrolledHead):
    """:class:`lab.drafters.eagle.EagleHead` with gradients.

    Args:
        model: shape of its layer; ``vocab_size`` is the served model's.
        embedding: the served model's, ``[vocab, hidden]``. It is not trained.
        num_features: width of the features.
    """

    def __init__(self, model: ModelConfig, embedding: torch.Tensor, num_features: int) -> None:
        super().__init__(model, embedding)
        hidden = model.hidden_size
        self.fc = nn.Linear(num_features, hidden, bias=False)
        self.midlayer = _EagleLayer(model)
        self.norm = nn.RMSNorm(hidden, model.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, model.vocab_size, bias=False)

    @torch.no_grad()
    def start_from(self, vocabulary: torch.Tensor, norm: torch.Tensor) -> None:
        """Start as the served model's last features behind its last norm, with its matrix to the vocabulary.

        Args:
            vocabulary: the served model's matrix from its normed features to logits, ``[vocab, hidden]``.
            norm: its last norm's weights, ``[hidden]``.
        """
        self.lm_head.weight.copy_(vocabulary)
        self.norm.weight.copy_(norm)
        self.fc.weight.zero_()
        self.fc.weight[:, -norm.shape[0] :].fill_diagonal_(1)
        self.midlayer.start_without_effect()

    def _read(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc(features).float()  # type: ignore[no-any-return]  # the residual stream stays exact

    def _forward(
        self, embedded: torch.Tensor, carried: torch.Tensor, attention: UnrolledAttention
    ) -> torch.Tensor:
        layer = self.midlayer
        rows = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(carried)], -1)
        return layer(rows, carried, attention)  # type: ignore[no-any-return]

    def _scores(self, carried: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(carried))  # type: ignore[no-any-return]


class _EagleLayer(TrainableLayer):
    """The layer, without biases: its attention reads embedding and carried features, each behind its norm."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(replace(model, has_qkv_bias=False), 2 * model.hidden_size)
        self.hidden_norm = nn.RMSNorm(model.hidden_size, model.rms_norm_eps)
