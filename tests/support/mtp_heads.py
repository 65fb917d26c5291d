"""Checkpoints with a random head for multi-token prediction, in the layout of MiMo, and its reference."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm, Qwen2RotaryEmbedding

PREFIX = "model.mtp_layers.0."


def add_head(qwen2: Path, directory: Path, *, seed: int = 0, without: str = "", **fields: Any) -> Path:
    """Write a copy of a Qwen2 checkpoint that is a MiMo with one head.

    Args:
        without: name of a tensor of the head that is left out.
        fields: override its ``config.json``.
    """
    shutil.copytree(qwen2, directory, dirs_exist_ok=True)
    config = json.loads((qwen2 / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps({**config, **fields}))
    tensors = safetensors.torch.load_file(qwen2 / "model.safetensors")
    head = {PREFIX + name: tensor for name, tensor in head_tensors(tensors, seed).items() if name != without}
    safetensors.torch.save_file({**tensors, **head}, directory / "model.safetensors")
    return directory


def head_tensors(served: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return random tensors of a head, its layer of the same shape as the served model's first one."""
    generator = torch.Generator().manual_seed(seed)
    first = "model.layers.0."
    shapes = {name.removeprefix(first): one.shape for name, one in served.items() if name.startswith(first)}
    hidden = served["model.norm.weight"].shape[0]
    for norm in ("hidden_layernorm", "token_layernorm", "final_layernorm"):
        shapes[f"{norm}.weight"] = torch.Size([hidden])
    shapes["input_proj.weight"] = torch.Size([hidden, 2 * hidden])
    tensors = {}
    for name, shape in sorted(shapes.items()):
        values = torch.randn(shape, generator=generator)
        tensors[name] = values * 0.2 + 1 if len(shape) == 1 else values / math.sqrt(shape[1])
    return tensors


class ReferenceMtp(torch.nn.Module):
    """The head in float64, made of transformers' modules, for a whole text without a cache."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        raw = json.loads((directory / "config.json").read_text())
        config = transformers.Qwen2Config(**{**raw, "model_type": "qwen2"})
        config._attn_implementation = "eager"
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_layernorm, self.token_layernorm, self.final_layernorm = (
            Qwen2RMSNorm(hidden, eps) for _ in range(3)
        )
        self.input_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.block = Qwen2DecoderLayer(config, 0)
        self.embed = torch.nn.Embedding(config.vocab_size, hidden)
        self.lm_head = torch.nn.Linear(hidden, config.vocab_size, bias=False)
        self.rotary = Qwen2RotaryEmbedding(config)
        tensors = safetensors.torch.load_file(directory / "model.safetensors")
        named = {
            "embed.weight": tensors["model.embed_tokens.weight"],
            "lm_head.weight": tensors["lm_head.weight"],
        }
        for name, tensor in tensors.items():
            if name.startswith(PREFIX):
                own = name.removeprefix(PREFIX)
                named[own if own.split(".")[0] in dict(self.named_children()) else f"block.{own}"] = tensor
        self.load_state_dict(named)
        self.double()

    @torch.no_grad()
    def forward(self, token_ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return what the rows of a text hand on, ``[rows, hidden]``, from tokens and features in order."""
        both = [self.hidden_layernorm(features), self.token_layernorm(self.embed(token_ids))]
        rows = self.input_proj(torch.cat(both, 1))[None]
        positions = torch.arange(len(token_ids))[None]
        size = len(token_ids)
        mask = torch.full((size, size), -math.inf, dtype=rows.dtype).triu(1)[None, None]
        turned = self.rotary(rows, positions)
        output = self.block(rows, attention_mask=mask, position_ids=positions, position_embeddings=turned)
        output = output[0] if isinstance(output, tuple) else output
        return self.final_layernorm(output.reshape(size, -1))

    @torch.no_grad()
    def log_probs(self, carried: torch.Tensor) -> torch.Tensor:
        """Return log chances of the next tokens."""
        return torch.log_softmax(self.lm_head(carried), 1)
