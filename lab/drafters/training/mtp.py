"""A multi-token prediction head in training, for a served model that stays as it is."""

from __future__ import annotations

import torch
from torch import nn

from agentspec.engine.model.config import ModelConfig
from lab.drafters.training.unrolled import TrainableLayer, UnrolledAttention, UnrolledHead


class TrainableMtp(UnrolledHead):
    """:class:`lab.drafters.mtp.MtpHead` with gradients.

    It begins as the served model's last features behind its last norm.

    Args:
        model: shape of its layer, the served model's.
        embedding: the served model's, ``[vocab, hidden]``. It is not trained.
        vocabulary: its matrix from normed features to logits, ``[vocab, hidden]``. It is not trained.
        norm: its last norm's weights, ``[hidden]``.
    """

    def __init__(
        self, model: ModelConfig, embedding: torch.Tensor, vocabulary: torch.Tensor, norm: torch.Tensor
    ) -> None:
        super().__init__(model, embedding)
        hidden, eps = model.hidden_size, model.rms_norm_eps
        self._vocabulary: torch.Tensor
        self.register_buffer("_vocabulary", vocabulary.float(), persistent=False)
        self.hidden_layernorm = nn.RMSNorm(hidden, eps)
        self.token_layernorm = nn.RMSNorm(hidden, eps)
        self.final_layernorm = nn.RMSNorm(hidden, eps)
        self.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = TrainableLayer(model, hidden)
        with torch.no_grad():
            self.final_layernorm.weight.copy_(norm)
            self.input_proj.weight.zero_()
            self.input_proj.weight[:, :hidden].fill_diagonal_(1)
        self.layer.start_without_effect()

    def published(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names, less the prefix of the head."""
        return {name.removeprefix("layer."): value for name, value in super().published().items()}

    def _read(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def _forward(
        self, embedded: torch.Tensor, carried: torch.Tensor, attention: UnrolledAttention
    ) -> torch.Tensor:
        both = torch.cat([self.hidden_layernorm(carried), self.token_layernorm(embedded)], -1)
        rows = self.input_proj(both).float()  # the residual stream stays exact
        behind: torch.Tensor = self.layer(self.layer.input_layernorm(rows), rows, attention)
        return self.final_layernorm(behind)  # type: ignore[no-any-return]

    def _scores(self, carried: torch.Tensor) -> torch.Tensor:
        return carried @ self._vocabulary.T
