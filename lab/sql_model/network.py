"""The network for training: a plain Llama decoder, saved in Hugging Face format.

Used only for training. The engine has its own forward pass, and a test compares the saved model with
transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. The default is 3.7 M parameters."""

    vocab_size: int = 1280
    hidden: int = 256
    intermediate: int = 640
    num_layers: int = 4
    num_heads: int = 4
    max_len: int = 2048
    rope_theta: float = 100_000.0


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, with fused projections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.attention_norm = nn.Parameter(torch.ones(shape.hidden))
        self.mlp_norm = nn.Parameter(torch.ones(shape.hidden))
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the block: [batch, length, hidden] -> the same shape."""
        batch, length, hidden = x.shape
        qkv = self.qkv(F.rms_norm(x, (hidden,), self.attention_norm, 1e-5))
        q, k, v = qkv.view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up(F.rms_norm(x, (hidden,), self.mlp_norm, 1e-5)).chunk(2, -1)
        result: Tensor = x + self.down(F.silu(gate) * up)
        return result


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Network(nn.Module):
    """The decoder, initialized with a copying circuit (see :func:`start_copying`)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.cos: Tensor
        self.sin: Tensor
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        head_dim = shape.hidden // shape.num_heads
        frequencies = shape.rope_theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(shape.max_len).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for block in self.blocks:
            assert isinstance(block, Block)
            for projection in (block.qkv, block.gate_up):
                nn.init.normal_(projection.weight, std=0.02)
            for output in (block.out, block.down):
                nn.init.zeros_(output.weight)
        start_copying(self)

    def forward(self, ids: Tensor, wanted: Tensor) -> Tensor:
        """Return logits [number wanted, vocabulary] where ``wanted`` [batch, length] is true."""
        x = self.embedding(ids)
        cos, sin = self.cos[: ids.shape[1]].to(x.dtype), self.sin[: ids.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        x = F.rms_norm(x[wanted], (self.shape.hidden,), self.norm, 1e-5)
        logits: Tensor = self.head(x)
        return logits

    def matrices(self) -> list[nn.Parameter]:
        """Return the blocks' weight matrices, which Muon updates."""
        return [p for p in self.blocks.parameters() if p.dim() == 2]

    def others(self) -> list[nn.Parameter]:
        """Return embedding, head and norms, which AdamW updates."""
        chosen = {id(p) for p in self.matrices()}
        return [p for p in self.parameters() if id(p) not in chosen]


@torch.no_grad()
def start_copying(network: Network) -> None:
    """Initialize layers 0 and 1 with the two-layer circuit that continues a repeated text.

    Small models learn to copy late and suddenly (Olsson et al. 2022, "induction heads"). Starting from the
    circuit saves most of the training. Head 0 of layer 0 attends to the previous token: query and key are
    constants with rotary phases that differ by one position. It writes a projection of that token into the
    last dimensions of the residual stream. Every head of layer 1 attends to positions where the previous
    token equals the current one, in the slow rotary dimensions. It adds the token found there to the residual
    stream. Training can change all of it.
    """
    shape, first, second = network.shape, network.blocks[0], network.blocks[1]
    assert isinstance(first, Block)
    assert isinstance(second, Block)
    head_dim = shape.hidden // shape.num_heads
    half = head_dim // 2
    constant, token, previous = 0, slice(1, shape.hidden - head_dim), slice(shape.hidden - head_dim, None)
    num_token_dims = token.stop - token.start
    projection = torch.linalg.qr(torch.randn(num_token_dims, head_dim))[0].T  # [head_dim, token dimensions]

    embedding = network.embedding.weight
    embedding.normal_()
    embedding[:, constant], embedding[:, previous] = 2.0, 0.0
    network.head.weight.copy_(embedding * 0.05)

    q, k, v = first.qkv.weight.chunk(3)
    angles = shape.rope_theta ** (-torch.arange(8) / half)  # the fastest eight
    q[:head_dim] = k[:head_dim] = v[:head_dim] = 0.0
    q[:8, constant] = 4.0
    k[:8, constant], k[half : half + 8, constant] = 4.0 * angles.cos(), 4.0 * angles.sin()
    v[:head_dim, token] = projection
    first.out.weight[previous, :head_dim] = torch.eye(head_dim)

    q, k, v = second.qkv.weight.chunk(3)
    slow = torch.cat((torch.arange(half // 2, half), torch.arange(half + half // 2, head_dim)))
    share = num_token_dims // shape.num_heads
    for head in range(shape.num_heads):
        rows = head * head_dim + slow
        chosen = torch.arange(len(slow)) + len(slow) * (head % 2)
        q[rows] = k[rows] = 0.0
        q[rows, token] = 2.2 * projection[chosen]
        k[rows, previous.start + chosen] = 2.2
        copied = torch.arange(token.start + head * share, token.start + (head + 1) * share)
        values = head * head_dim + torch.arange(share)
        v[head * head_dim : (head + 1) * head_dim] = 0.0
        v[values, copied] = 1.0
        second.out.weight[copied, values] = 6.0


def load(directory: Path) -> Network:
    """Return a network that :func:`save` wrote, in float32."""
    config = json.loads((directory / "config.json").read_text())
    shape = Shape(
        vocab_size=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        max_len=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
    )
    network = Network(shape)
    tensors = load_file(directory / "model.safetensors")
    weights = {
        "embedding.weight": tensors["model.embed_tokens.weight"],
        "norm": tensors["model.norm.weight"],
        "head.weight": tensors["lm_head.weight"],
    }
    for i in range(shape.num_layers):
        layer = partial("model.layers.{}.{}.weight".format, i)
        weights |= {
            f"blocks.{i}.qkv.weight": torch.cat([tensors[layer(f"self_attn.{part}_proj")] for part in "qkv"]),
            f"blocks.{i}.out.weight": tensors[layer("self_attn.o_proj")],
            f"blocks.{i}.gate_up.weight": torch.cat(
                [tensors[layer(f"mlp.{part}_proj")] for part in ("gate", "up")]
            ),
            f"blocks.{i}.down.weight": tensors[layer("mlp.down_proj")],
            f"blocks.{i}.attention_norm": tensors[layer("input_layernorm")],
            f"blocks.{i}.mlp_norm": tensors[layer("post_attention_layernorm")],
        }
    network.load_state_dict(weights)
    return network


def save(network: Network, directory: Path, eos_id: int, pad_id: int) -> None:
    """Write config.json and model.safetensors (float16) in the format of transformers' Llama."""
    shape = network.shape
    tensors: dict[str, Tensor] = {}
    tensors["model.embed_tokens.weight"] = network.embedding.weight
    tensors["model.norm.weight"] = network.norm
    tensors["lm_head.weight"] = network.head.weight
    for i, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        prefix = f"model.layers.{i}."
        for name, part in zip("qkv", block.qkv.weight.chunk(3), strict=True):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = part
        tensors[f"{prefix}self_attn.o_proj.weight"] = block.out.weight
        gate, up = block.gate_up.weight.chunk(2)
        tensors[f"{prefix}mlp.gate_proj.weight"] = gate
        tensors[f"{prefix}mlp.up_proj.weight"] = up
        tensors[f"{prefix}mlp.down_proj.weight"] = block.down.weight
        tensors[f"{prefix}input_layernorm.weight"] = block.attention_norm
        tensors[f"{prefix}post_attention_layernorm.weight"] = block.mlp_norm
    save_file(
        {k: v.detach().to(torch.float16).contiguous() for k, v in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_heads,
        "max_position_embeddings": shape.max_len,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def restore(path: Path, shape: Shape) -> Network:
    """Load a network from a training checkpoint (``checkpoint.safetensors``)."""
    network = Network(shape)
    network.load_state_dict(load_file(path))
    return network
