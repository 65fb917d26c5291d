"""A head in training, unrolled on its own outputs: the training-time test of EAGLE-3 (arXiv 2503.01840)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.rotary import frequencies
from lab.drafters.training.texts import Observed, ahead

STEP_DISCOUNT = 0.8  # of the loss of each further step


class UnrolledHead(nn.Module, ABC):
    """A head that reads features and embeddings, and hands on its own outputs in place of features.

    Args:
        model: shape of its layer; ``vocab_size`` is the served model's.
        embedding: the served model's, ``[vocab, hidden]``. It is not trained.

    Attributes:
        shape: of its layer.
    """

    def __init__(self, model: ModelConfig, embedding: torch.Tensor) -> None:
        super().__init__()
        self.shape = model
        self._embedding: torch.Tensor
        self.register_buffer("_embedding", embedding.float(), persistent=False)

    def loss(self, observed: Observed, num_steps: int) -> torch.Tensor:
        """Return the cross-entropy with the served model's chances, over draft tokens behind every token.

        Step n drafts the n-th token after the last known one, from the head's own outputs of the steps
        before. Only tokens of outputs count.
        """
        texts = observed.texts
        carried = self._read(observed.features)
        attention = UnrolledAttention()
        total: torch.Tensor = carried.new_zeros(())
        weights = 0.0
        for step in range(1, num_steps + 1):
            carried = self._forward(self._embedding[torch.roll(texts.ids, -step, 1)], carried, attention)
            wanted = ahead(texts.is_output, step + 1)
            expected = torch.roll(observed.chances, -step, 1)[wanted]
            losses = -(expected * functional.log_softmax(self._scores(carried[wanted]).float(), -1)).sum(-1)
            weight = STEP_DISCOUNT ** (step - 1)
            total = total + weight * losses.sum() / max(1, len(losses))
            weights += weight
        return total / weights

    def published(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names."""
        return {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}

    @abstractmethod
    def _read(self, features: torch.Tensor) -> torch.Tensor:
        """Return what tokens carry whose features are known, ``[texts, tokens, hidden]``."""

    @abstractmethod
    def _forward(
        self, embedded: torch.Tensor, carried: torch.Tensor, attention: UnrolledAttention
    ) -> torch.Tensor:
        """Return what a step hands on to the next one, ``[texts, tokens, hidden]``."""

    @abstractmethod
    def _scores(self, carried: torch.Tensor) -> torch.Tensor:
        """Return logits ``[rows, vocab]`` of what rows hand on."""


class TrainableLayer(nn.Module):
    """A decoder layer with gradients, under the published names.

    Args:
        model: its shape.
        num_inputs: width of what its attention reads.
    """

    def __init__(self, model: ModelConfig, num_inputs: int) -> None:
        super().__init__()
        hidden, inner = model.hidden_size, model.intermediate_size
        self._shape = model
        self._frequencies: torch.Tensor
        self.register_buffer("_frequencies", frequencies(model.rope, model.head_dim), persistent=False)
        queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        bias = model.has_qkv_bias
        self.input_layernorm = nn.RMSNorm(hidden, model.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, model.rms_norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(num_inputs, queries, bias=bias),
                "k_proj": nn.Linear(num_inputs, keys, bias=bias),
                "v_proj": nn.Linear(num_inputs, keys, bias=bias),
                "o_proj": nn.Linear(queries, hidden, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, inner, bias=False),
                "up_proj": nn.Linear(hidden, inner, bias=False),
                "down_proj": nn.Linear(inner, hidden, bias=False),
            }
        )

    def forward(
        self, rows: torch.Tensor, carried: torch.Tensor, attention: UnrolledAttention
    ) -> torch.Tensor:
        """Return the residual stream behind the layer, ``[texts, tokens, hidden]``.

        Args:
            rows: what attention reads, behind its norms.
            carried: the residual stream before the layer.
        """
        carried = carried + self._attend(rows, attention)
        inner = self.post_attention_layernorm(carried)
        gated = functional.silu(self.mlp["gate_proj"](inner)) * self.mlp["up_proj"](inner)
        added: torch.Tensor = self.mlp["down_proj"](gated)
        return carried + added

    @torch.no_grad()
    def start_without_effect(self) -> None:
        """Make the layer hand on its residual stream as it is."""
        for added in (self.self_attn["o_proj"], self.mlp["down_proj"]):
            assert isinstance(added, nn.Linear)
            added.weight.zero_()

    def _attend(self, rows: torch.Tensor, attention: UnrolledAttention) -> torch.Tensor:
        shape, place = self._shape, attention.num_steps
        attn: Any = self.self_attn
        queries, keys, values = (
            attn[f"{kind}_proj"](rows).unflatten(-1, (count, shape.head_dim)).transpose(1, 2)
            for kind, count in (("q", shape.num_heads), ("k", shape.num_kv_heads), ("v", shape.num_kv_heads))
        )
        repeats = shape.num_heads // shape.num_kv_heads
        keys = self._turned(keys, place).repeat_interleave(repeats, 1)
        attended = attention.attend(self._turned(queries, place), keys, values.repeat_interleave(repeats, 1))
        added: torch.Tensor = attn["o_proj"](attended.transpose(1, 2).flatten(2))
        return added

    def _turned(self, heads: torch.Tensor, first: int) -> torch.Tensor:
        """Rotary embedding of ``[texts, heads, tokens, size]`` from a position on; halves are paired."""
        positions = torch.arange(first, first + heads.shape[2], device=heads.device)
        angles = positions[:, None] * self._frequencies
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        half = heads.shape[-1] // 2
        one, other = heads[..., :half], heads[..., half:]
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class UnrolledAttention:
    """Attention of drafts that begin at all tokens together.

    At the first step each token sees those before it. At each further step, it also sees the draft's own
    earlier steps: one entry per step.
    """

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return len(self._keys)

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Take the entries of a step, and attend: all are ``[texts, heads, tokens, size]``."""
        self._keys.append(keys)
        self._values.append(values)
        size = queries.shape[2]
        scale = 1 / math.sqrt(queries.shape[3])
        hidden = torch.ones(size, size, dtype=torch.bool, device=queries.device).triu(1)
        scores = [(queries @ self._keys[0].transpose(2, 3) * scale).masked_fill(hidden, -torch.inf)]
        scores += [(queries * own).sum(-1, keepdim=True) * scale for own in self._keys[1:]]
        weights = torch.softmax(torch.cat(scores, -1).float(), -1).to(values.dtype)
        attended = weights[..., :size] @ self._values[0]
        for step, own in enumerate(self._values[1:]):
            attended = attended + weights[..., size + step, None] * own
        return attended
