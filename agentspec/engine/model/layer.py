"""One layer of a Llama-family model, and the source of its tensors."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.linear import Linear
from agentspec.engine.model.norm import RMSNorm
from agentspec.engine.model.rotary import interleave, rotate


class Weights(Protocol):
    """The source of the model's tensors."""

    dtype: torch.dtype
    device: torch.device

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this name, in ``dtype`` on ``device``; CheckpointError if missing or misshapen."""


class DecoderLayer:
    """Attention and feed-forward, each with its norm and its residual.

    Args:
        prefix: of the names of its tensors.
    """

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str, has_packing: bool) -> None:
        self._prefix = prefix
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
        """Return the residual stream ``[rows, hidden]`` behind this layer, the cache's layer ``index``."""
        return self._behind(index, hidden, self._qkv(self._attention_norm(hidden)), rotation, plan)

    def _behind(
        self,
        index: int,
        hidden: torch.Tensor,
        qkv: torch.Tensor,
        rotation: torch.Tensor,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """Attend with the fused queries, keys and values; add attention and feed-forward to ``hidden``."""
        rows, head_dim = hidden.shape[0], self._config.head_dim
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

    @property
    def _num_inputs(self) -> int:
        """Columns of the fused weight of queries, keys and values."""
        return self._config.hidden_size

    def _fold_norm(self, weight: torch.Tensor) -> torch.Tensor:
        """Return that weight with the scale of the norm before it in its columns."""
        return self._attention_norm.fold(weight)

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
            weight = self._take(f"self_attn.{name}_proj.weight", outputs, self._num_inputs)
            weights.append(weight if name == "v" else interleave(weight, config.head_dim))
            if config.has_qkv_bias:
                bias = self._take(f"self_attn.{name}_proj.bias", outputs)
                biases.append(bias if name == "v" else interleave(bias, config.head_dim))
        fused = self._fold_norm(torch.cat(weights))
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
