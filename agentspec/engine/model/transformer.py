"""The forward pass of a Llama-family model over a batch of segments.

Knows nothing of requests, sampling or files: ``checkpoint`` brings the weights, ``kv_cache`` keeps
keys and values, ``attention`` decides who sees whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.linear import PACK_LIMIT_BYTES, Linear
from agentspec.engine.model.norm import RMSNorm
from agentspec.engine.model.rotary import RotaryTable, interleave, rotate


class Weights(Protocol):
    """Where the model takes its tensors from."""

    dtype: torch.dtype
    device: torch.device

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this name, in ``dtype`` on ``device``; CheckpointError if missing or misshapen."""


class Transformer:
    """A decoder-only Llama-family model."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        has_packing = _num_parameters(config) * 4 <= PACK_LIMIT_BYTES
        hidden, vocab = config.hidden_size, config.vocab_size
        with torch.inference_mode():
            self._embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
            self._layers = [_Layer(config, weights, index, has_packing) for index in range(config.num_layers)]
            self._norm = RMSNorm(weights.take("model.norm.weight", hidden), config.rms_norm_eps)
            head = (
                self._embedding
                if config.has_tied_embeddings
                else weights.take("lm_head.weight", vocab, hidden)
            )
            self._head = Linear(self._norm.fold(head), has_packing=has_packing)
            self._rotary = RotaryTable(config, self.device)

    def forward(self, segments: Sequence[Segment], cache: KVCache) -> torch.Tensor:
        """float32 logits ``[sum(n - logits_from), vocab]``, in segment order.

        Writes K and V of token j of a segment at entry ``start + j`` of its slot. Its rotary position
        is ``start + depth(j)``; it attends to the slot's first ``start`` entries, to its ancestors
        within the segment and to itself.

        Raises:
            EngineError: a segment does not fit its slot, or two segments share one.
        """
        cache.check_bounds(segments)
        with torch.inference_mode():
            plan = AttentionPlan(segments, cache, self.config.layer_windows)
            hidden = self._embedding.index_select(0, self._tokens(segments))
            rotation = self._rotation(segments)
            for index, layer in enumerate(self._layers):
                hidden = layer.forward(index, hidden, rotation, plan)
            hidden = self._wanted(hidden, segments)
            return self._head(self._norm(hidden)).float()

    def _tokens(self, segments: Sequence[Segment]) -> torch.Tensor:
        ids = np.concatenate([segment.token_ids for segment in segments])
        return torch.from_numpy(ids).to(self.device)

    def _rotation(self, segments: Sequence[Segment]) -> torch.Tensor:
        positions = np.concatenate([segment.start + segment.depths() for segment in segments])
        max_position = max(segment.end for segment in segments) - 1
        return self._rotary.at(torch.from_numpy(positions).to(self.device), max_position)

    def _wanted(self, hidden: torch.Tensor, segments: Sequence[Segment]) -> torch.Tensor:
        """The rows that logits are wanted of."""
        if not any(segment.logits_from for segment in segments):
            return hidden
        pieces = hidden.split_with_sizes([len(segment) for segment in segments])
        wanted = [piece[s.logits_from :] for piece, s in zip(pieces, segments, strict=True)]
        return wanted[0] if len(wanted) == 1 else torch.cat(wanted)


class _Layer:
    """Attention and feed-forward, each with its norm and its residual."""

    def __init__(self, config: ModelConfig, weights: Weights, index: int, has_packing: bool) -> None:
        self._prefix = f"model.layers.{index}."
        self._config = config
        self._weights: Weights | None = weights
        self._num_turned = config.num_heads + config.num_kv_heads
        self._num_heads = config.num_heads + 2 * config.num_kv_heads
        hidden, eps = config.hidden_size, config.rms_norm_eps
        inner = config.num_heads * config.head_dim
        self._attention_norm = RMSNorm(self._take("input_layernorm.weight", hidden), eps)
        self._mlp_norm = RMSNorm(self._take("post_attention_layernorm.weight", hidden), eps)
        self._qkv = self._fused_qkv(has_packing)
        self._gate_up = self._fused_gate_up(has_packing)
        self._output = self._plain("self_attn.o_proj", inner, hidden, config.has_output_bias, has_packing)
        self._down = self._plain(
            "mlp.down_proj", config.intermediate_size, hidden, config.has_mlp_bias, has_packing
        )
        self._head_scale = self._fused_head_scale() if config.has_qk_norm else None
        self._weights = None  # the files may be closed now

    def forward(
        self, index: int, hidden: torch.Tensor, rotation: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        rows, head_dim = hidden.shape[0], self._config.head_dim
        qkv = self._qkv(self._attention_norm(hidden))
        width = qkv.shape[1]
        turned = qkv.as_strided((rows, self._num_turned, head_dim), (width, head_dim, 1))
        if self._head_scale is not None:
            turned.copy_(self._normalized(turned, self._head_scale))
        rotate(turned, rotation)
        strides = (width * rows, head_dim, width, 1)
        num_heads = self._config.num_heads
        queries = qkv.as_strided((1, num_heads, rows, head_dim), strides)
        entries = qkv.as_strided(
            (self._num_heads - num_heads, rows, head_dim), strides[1:], num_heads * head_dim
        )
        plan.write(index, entries)
        hidden = self._output.add_to(hidden, plan.attend(index, queries))
        gate, up = self._gate_up(self._mlp_norm(hidden)).chunk(2, 1)
        return self._down.add_to(hidden, functional.silu(gate).mul_(up))

    def _normalized(self, heads: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Qwen3: RMS norm of every query and key head, ``[rows, heads, head_dim]``."""
        normed = functional.rms_norm(heads, (heads.shape[2],), None, self._config.rms_norm_eps)
        return normed * scale

    def _take(self, name: str, *shape: int) -> torch.Tensor:
        assert self._weights is not None
        return self._weights.take(self._prefix + name, *shape)

    def _plain(self, name: str, inputs: int, outputs: int, has_bias: bool, has_packing: bool) -> Linear:
        bias = self._take(f"{name}.bias", outputs) if has_bias else None
        return Linear(self._take(f"{name}.weight", outputs, inputs), bias, has_packing=has_packing)

    def _fused_qkv(self, has_packing: bool) -> Linear:
        config = self._config
        sizes = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        weights, biases = [], []
        for name, num_heads in sizes.items():
            outputs = num_heads * config.head_dim
            weight = self._take(f"self_attn.{name}_proj.weight", outputs, config.hidden_size)
            weights.append(weight if name == "v" else interleave(weight, config.head_dim))
            if config.has_qkv_bias:
                bias = self._take(f"self_attn.{name}_proj.bias", outputs)
                biases.append(bias if name == "v" else interleave(bias, config.head_dim))
        fused = self._attention_norm.fold(torch.cat(weights))
        return Linear(fused, torch.cat(biases) if biases else None, has_packing=has_packing)

    def _fused_gate_up(self, has_packing: bool) -> Linear:
        config = self._config
        names, outputs = ("mlp.gate_proj", "mlp.up_proj"), config.intermediate_size
        weights = [self._take(f"{name}.weight", outputs, config.hidden_size) for name in names]
        biases = [self._take(f"{name}.bias", outputs) for name in names] if config.has_mlp_bias else None
        fused = self._mlp_norm.fold(torch.cat(weights))
        return Linear(fused, torch.cat(biases) if biases else None, has_packing=has_packing)

    def _fused_head_scale(self) -> torch.Tensor:
        """``[heads + kv_heads, head_dim]``: the norm weights of the query and key heads."""
        config = self._config
        query = interleave(self._take("self_attn.q_norm.weight", config.head_dim), config.head_dim)
        key = interleave(self._take("self_attn.k_norm.weight", config.head_dim), config.head_dim)
        return torch.cat([query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)])


def _num_parameters(config: ModelConfig) -> int:
    """Weights in matrices, roughly: what decides whether a second copy is affordable."""
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size
