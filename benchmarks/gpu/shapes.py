"""Models without weights: only their shapes, as ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from benchmarks.gpu.calls import Calls

_LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128_256,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8_192,
    "rope_theta": 500_000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def llama_8b(calls: Calls) -> Mapping[str, Any]:
    """Return Llama-8B's shape. Raises ConfigError if the calls don't fit its vocabulary or its context."""
    for name, needed in (("vocab_size", calls.num_ids), ("max_position_embeddings", calls.longest + 1)):
        if needed > _LLAMA_8B[name]:
            raise ConfigError(f"the calls need a {name} of {needed}, the model has {_LLAMA_8B[name]}")
    return _LLAMA_8B


def tiny(calls: Calls) -> Mapping[str, Any]:
    """Return the shape of a tiny model for a CPU, with just the vocabulary of the calls."""
    return {
        **_LLAMA_8B,
        "torch_dtype": "float32",
        "vocab_size": calls.num_ids,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }


def write(folder: Path, shape: Mapping[str, Any]) -> Path:
    """Write the shape into a new folder, and return it: vLLM's ``--model``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n")
    return folder
