"""Trained heads as files in the published formats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from agentspec.engine.model.checkpoint import WEIGHTS_FILE
from agentspec.engine.model.checkpoint_config import CONFIG_FILE, load_config, read_json
from agentspec.engine.model.config import ModelConfig, RopeConfig
from agentspec.errors import CheckpointError
from lab.drafters.eagle_config import ARCHITECTURES
from lab.drafters.mtp import PREFIX
from lab.drafters.training.eagle import TrainableEagle
from lab.drafters.training.medusa import TrainableMedusa
from lab.drafters.training.mtp import TrainableMtp

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


def write_mtp(directory: Path, head: TrainableMtp, served: Path) -> None:
    """Write a copy of a checkpoint with a head for multi-token prediction, in the layout of MiMo.

    MiMo has biases of queries, keys and values. For a model without these they are zero. Tensors keep the
    dtype of the checkpoint. The model type is Qwen2's, which libraries know without code from the checkpoint.

    Args:
        served: the directory of the served model, with all weights in one file.

    Raises:
        CheckpointError: the layout can't say what the model is, ``directory`` is the model's, or a file is
            missing or broken.
    """
    model = load_config(served)
    _check_fits_mimo(model, served)
    if directory.resolve() == served.resolve():
        raise CheckpointError(f"{str(directory)!r} has the model without the head: write to another folder")
    if not (served / WEIGHTS_FILE).is_file():
        raise CheckpointError(
            f"there is no {WEIGHTS_FILE!r} in {str(served)!r}, with all weights in one file"
        )
    tensors = safetensors.torch.load_file(served / WEIGHTS_FILE)
    dtype = tensors["model.embed_tokens.weight"].dtype
    tensors |= {PREFIX + name: value.to(dtype) for name, value in head.published().items()}
    sizes = {"q": model.num_heads, "k": model.num_kv_heads, "v": model.num_kv_heads}
    for layer in [f"model.layers.{index}." for index in range(model.num_layers)] + [PREFIX]:
        for name, number in sizes.items():
            missing = torch.zeros(number * model.head_dim, dtype=dtype)
            tensors.setdefault(f"{layer}self_attn.{name}_proj.bias", missing)
    raw = read_json(served / CONFIG_FILE)
    layout = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": model.num_kv_heads,  # the default is another one than Mistral's
        "num_nextn_predict_layers": 1,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for file in served.iterdir():  # tokenizer and template; a folder may be this very one
        if file.is_file() and file.name not in (CONFIG_FILE, WEIGHTS_FILE):
            shutil.copy(file, directory)
    (directory / CONFIG_FILE).write_text(json.dumps({**raw, **layout}, indent=2) + "\n")
    safetensors.torch.save_file(tensors, directory / WEIGHTS_FILE, {"format": "pt"})


def _check_fits_mimo(model: ModelConfig, path: Path) -> None:
    has_more = model.has_qk_norm or model.has_output_bias or model.has_mlp_bias or any(model.layer_windows)
    if has_more or model.head_dim * model.num_heads != model.hidden_size:
        raise CheckpointError(f"{str(path)!r} is no plain Llama or Qwen2: MiMo's layout has no place for it")


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
