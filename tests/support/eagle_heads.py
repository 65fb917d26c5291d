"""Random EAGLE-3 heads in the published format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

THETA = 10_000.0

Tensors = dict[str, torch.Tensor]


def head_config(**fields: Any) -> dict[str, Any]:
    """Return a ``config.json`` of a head for the random Llama of ``checkpoints``."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 384,
        "draft_vocab_size": 100,
        "rms_norm_eps": 1e-5,
        "rope_theta": THETA,
        "max_position_embeddings": 512,
        **fields,
    }


def head_tensors(config: Mapping[str, Any], *, target_hidden: int = 64, seed: int = 0) -> Tensors:
    """Return random tensors under the published names, as float64."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    num_drafted, num_tokens = config["draft_vocab_size"], config["vocab_size"]
    shapes = {
        "fc.weight": (hidden, 3 * target_hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (num_drafted, hidden),
    }
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (3 * target_hidden,)
    if config.get("fc_norm"):
        shapes.update({f"fc_norm.{layer}.weight": (target_hidden,) for layer in range(3)})
    tensors: Tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensors[name] = values * 0.2 + 1 if len(shape) == 1 else values / math.sqrt(shape[1]) * 2
    ids = torch.randperm(num_tokens, generator=generator)[:num_drafted].sort().values
    tensors["d2t"] = ids - torch.arange(num_drafted)
    tensors["t2d"] = torch.zeros(num_tokens, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def write_head(directory: Path, config: Mapping[str, Any], tensors: Tensors, *, as_bin: bool = False) -> Path:
    """Write a head as it is published."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if as_bin:
        torch.save(tensors, directory / "pytorch_model.bin")
    else:
        safetensors.torch.save_file(
            {name: one.contiguous() for name, one in tensors.items()}, directory / "model.safetensors"
        )
    return directory
