"""Trained heads as files in the published formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from agentspec.engine.drafters.eagle_config import ARCHITECTURES
from agentspec.engine.drafters.training.eagle import TrainableEagle
from agentspec.engine.drafters.training.medusa import TrainableMedusa
from agentspec.engine.model.checkpoint_config import CONFIG_FILE
from agentspec.engine.model.config import ModelConfig, RopeConfig

_LAYERS = "eagle_aux_hidden_state_layer_ids"


def write_eagle(
    directory: Path, head: TrainableEagle, target: ModelConfig, hidden_layers: tuple[int, ...]
) -> None:
    """Write an EAGLE-3 head, its weights as float16.

    Args:
        target: the served model's configuration.
        hidden_layers: layers of the served model whose inputs it reads.
    """
    model = head.shape
    config = {
        "architectures": [ARCHITECTURES[0]],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size,
        "target_hidden_size": target.hidden_size,
        "max_position_embeddings": target.max_position_embeddings,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope.theta,
        "rope_scaling": _rope_scaling(model.rope),
        "torch_dtype": "float16",
        _LAYERS: list(hidden_layers),  # where vLLM's runner V2 reads them
        "eagle_config": {
            _LAYERS: list(hidden_layers),
            "use_aux_hidden_state": True,
        },
    }
    _write(directory, config, head.published(), "model.safetensors")


def write_medusa(directory: Path, head: TrainableMedusa) -> None:
    """Write Medusa heads, their weights as float16."""
    vocab_size, hidden_size = head.vocabulary_shape
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "medusa_num_heads": head.num_heads,
        "medusa_num_layers": 1,
        "medusa_fc_bias": True,
    }
    _write(directory, config, head.published(), "medusa_lm_head.safetensors")


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings
    return scaling


def _write(
    directory: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], name: str
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    halves = {key: value.to(torch.float16) for key, value in tensors.items()}
    safetensors.torch.save_file(halves, directory / name)
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
