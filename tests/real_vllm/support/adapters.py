"""LoRA adapters of the bundled model with random weights, in the form that vLLM loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from agentspec.models import bundled_model_dir

RANK = 4
SCALE = 0.4  # enough to change the outputs
MODULES = ("q_proj", "v_proj")


def make_adapter(folder: Path, seed: int) -> Path:
    """Write an adapter that changes the model's outputs to a new folder, and return the folder."""
    config = json.loads((bundled_model_dir() / "config.json").read_text())
    width, generator = config["hidden_size"], torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module in MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, width, generator=generator) * SCALE
            weights[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=generator) * SCALE
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": RANK,
                "lora_alpha": RANK,
                "target_modules": list(MODULES),
                "bias": "none",
                "base_model_name_or_path": "agentspec_sql",
            }
        )
    )
    return folder
