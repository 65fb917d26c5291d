"""EAGLE-3 in training: the head is unrolled on its own outputs (the paper's training-time test)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agentspec.engine.drafters.training.texts import Observed, ahead
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.rotary import frequencies

STEP_DISCOUNT = 0.8  # of the loss of each further step


class TrainableEagle(nn.Module):
    """The layer of :class:`agentspec.engine.drafters.eagle.EagleHead`, with gradients.

    Args:
        model: shape of its layer; ``vocab_size`` is the served model's.
        embedding: the served model's, ``[vocab, hidden]``. It is not trained.
        num_features: width of the features.

    Attributes:
        shape: of its layer.
    """

    def __init__(self, model: ModelConfig, embedding: torch.Tensor, num_features: int) -> None:
        super().__init__()
        hidden, head_dim = model.hidden_size, model.head_dim
        self.shape = model
        self._embedding: torch.Tensor
        self._frequencies: torch.Tensor
        self.register_buffer("_embedding", embedding.float(), persistent=False)
        self.register_buffer("_frequencies", frequencies(model.rope, head_dim), persistent=False)
        queries, keys = model.num_heads * head_dim, model.num_kv_heads * head_dim

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(hidden, model.rms_norm_eps)

        self.fc = linear(num_features, hidden)
        self.midlayer = nn.ModuleDict(
            {
                "input_layernorm": norm(),
                "hidden_norm": norm(),
                "post_attention_layernorm": norm(),
                "self_attn": nn.ModuleDict(
                    {
                        "q_proj": linear(2 * hidden, queries),
                        "k_proj": linear(2 * hidden, keys),
                        "v_proj": linear(2 * hidden, keys),
                        "o_proj": linear(queries, hidden),
                    }
                ),
                "mlp": nn.ModuleDict(
                    {
                        "gate_proj": linear(hidden, model.intermediate_size),
                        "up_proj": linear(hidden, model.intermediate_size),
                        "down_proj": linear(model.intermediate_size, hidden),
                    }
                ),
            }
        )
        self.norm = norm()
        self.lm_head = linear(hidden, model.vocab_size)

    @torch.no_grad()
    def start_from(self, vocabulary: torch.Tensor, norm: torch.Tensor) -> None:
        """Start as the served model's last features behind its last norm, with its matrix to the vocabulary.

        Args:
            vocabulary: the served model's matrix from its normed features to logits, ``[vocab, hidden]``.
            norm: its last norm's weights, ``[hidden]``.
        """
        self.lm_head.weight.copy_(vocabulary)
        self.norm.weight.copy_(norm)
        hidden = norm.shape[0]
        self.fc.weight.zero_()
        self.fc.weight[:, -hidden:].fill_diagonal_(1)
        layer: Any = self.midlayer
        for added in (layer["self_attn"]["o_proj"], layer["mlp"]["down_proj"]):
            added.weight.zero_()

    def loss(self, observed: Observed, num_steps: int) -> torch.Tensor:
        """Return the cross-entropy with the served model's chances, over draft tokens behind every token.

        Step n drafts the n-th token after the last known one, from the head's own outputs of the steps
        before. Only tokens of outputs count.
        """
        texts = observed.texts
        carried = self.fc(observed.features).float()  # the residual stream stays exact
        attention = _Unrolled()
        total: torch.Tensor = carried.new_zeros(())
        weights = 0.0
        for step in range(1, num_steps + 1):
            ids = torch.roll(texts.ids, -step, 1)
            carried = self._layer(self._embedding[ids], carried, attention)
            wanted = ahead(texts.is_output, step + 1)
            expected = torch.roll(observed.chances, -step, 1)[wanted]
            scores = self.lm_head(self.norm(carried[wanted])).float()
            losses = -(expected * functional.log_softmax(scores, -1)).sum(-1)
            weight = STEP_DISCOUNT ** (step - 1)
            total = total + weight * losses.sum() / max(1, len(losses))
            weights += weight
        return total / weights

    def published(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names."""
        return {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}

    def _layer(self, embedded: torch.Tensor, carried: torch.Tensor, attention: _Unrolled) -> torch.Tensor:
        layer: Any = self.midlayer
        rows = torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](carried)], -1)
        carried = carried + self._attend(rows, attention)
        inner = layer["post_attention_layernorm"](carried)
        mlp = layer["mlp"]
        gated: torch.Tensor = functional.silu(mlp["gate_proj"](inner)) * mlp["up_proj"](inner)
        added: torch.Tensor = mlp["down_proj"](gated)
        return carried + added

    def _attend(self, rows: torch.Tensor, attention: _Unrolled) -> torch.Tensor:
        attn: Any = self.midlayer["self_attn"]
        shape, place = self.shape, attention.num_steps
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


class _Unrolled:
    """Attention of a draft that begins at every token at once.

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
