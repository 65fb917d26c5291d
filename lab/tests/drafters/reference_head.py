"""The reference computation of an EAGLE-3 head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from tests.support.eagle_heads import THETA, Tensors


class ReferenceHead:
    """The computation of EAGLE-3 from its definition, row by row, without a cache.

    Args:
        embedding: float64 ``[vocab, hidden]``.
    """

    def __init__(self, config: Mapping[str, Any], tensors: Tensors, embedding: torch.Tensor) -> None:
        self._config = config
        self._tensors = tensors
        self._embedding = embedding

    def read(self, features: torch.Tensor) -> torch.Tensor:
        """Return what rows carry whose features are known."""
        if self._config.get("norm_before_fc"):
            features = self._norm(features, "input_norm")
        if self._config.get("fc_norm"):
            chunks = enumerate(features.chunk(3, 1))
            features = torch.cat([self._norm(chunk, f"fc_norm.{layer}") for layer, chunk in chunks], 1)
        return features @ self._tensors["fc.weight"].T

    def forward(self, token_ids: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
        """Return what the rows of a text, from its beginning, hand on."""
        layer = self._layer
        normed = self._norm(carried, "midlayer.hidden_norm")
        residual = normed if self._config.get("norm_before_residual") else carried
        both = torch.cat([self._norm(self._embedding[token_ids], "midlayer.input_layernorm"), normed], 1)
        residual = residual + self._attention(both) @ layer("self_attn.o_proj").T
        inner = self._norm(residual, "midlayer.post_attention_layernorm")
        gate = functional.silu(inner @ layer("mlp.gate_proj").T)
        residual = residual + (gate * (inner @ layer("mlp.up_proj").T)) @ layer("mlp.down_proj").T
        return self._norm(residual, "norm") if self._config.get("norm_output") else residual

    def log_probs(self, carried: torch.Tensor) -> torch.Tensor:
        """Return log chances over the whole vocabulary; minus infinity where it can't draft."""
        normed = carried if self._config.get("norm_output") else self._norm(carried, "norm")
        scores = torch.log_softmax(normed @ self._tensors["lm_head.weight"].T, 1)
        ids = torch.arange(scores.shape[1]) + self._tensors["d2t"]
        whole = torch.full((len(scores), self._config["vocab_size"]), -math.inf, dtype=scores.dtype)
        return whole.index_copy(1, ids, scores)

    def _layer(self, name: str) -> torch.Tensor:
        return self._tensors[f"midlayer.{name}.weight"]

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(rows.square().mean(1, keepdim=True) + self._config["rms_norm_eps"])
        return rows * scale * self._tensors[f"{name}.weight"]

    def _attention(self, rows: torch.Tensor) -> torch.Tensor:
        num_heads, num_kv = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        heads = {
            kind: (rows @ self._layer(f"self_attn.{kind}_proj").T).view(len(rows), count, -1).transpose(0, 1)
            for kind, count in (("q", num_heads), ("k", num_kv), ("v", num_kv))
        }
        queries, keys = _turned(heads["q"]), _turned(heads["k"]).repeat_interleave(num_heads // num_kv, 0)
        values = heads["v"].repeat_interleave(num_heads // num_kv, 0)
        scores = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[2])
        hidden = torch.ones(len(rows), len(rows), dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), 2)
        return (weights @ values).transpose(0, 1).reshape(len(rows), -1)


def _turned(heads: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of ``[heads, rows, size]``, with the halves of a head paired."""
    half = heads.shape[2] // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(heads.shape[1], dtype=torch.float64)[:, None] * frequencies
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], 2)
