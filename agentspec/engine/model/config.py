"""The shape of a Llama-family model, read from the two dialects of ``config.json``.

Owns :class:`ModelConfig` and which architectures are known. Knows no tensors and no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.errors import CheckpointError

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MiMoForCausalLM": "qwen2",  # with MTP heads, which are not read
}
# What a family's config.json means by leaving a key out.
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"sliding_window": 4096},
    "qwen3": {"head_dim": 128, "sliding_window": 4096},
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: ``kind`` is ``default``, ``linear`` or ``llama3``."""

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The facts of a checkpoint that the forward pass needs.

    Attributes:
        layer_windows: per layer, how many of the last positions a token attends to, itself
            included; None = all.
        eos_ids: token ids that ``config.json`` names as the end.
        stored_dtype: torch's name of the dtype the checkpoint says it is stored in, if it says.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    layer_windows: tuple[int | None, ...]
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    has_tied_embeddings: bool = False
    eos_ids: frozenset[int] = frozenset()
    stored_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads {self.num_heads!r} is no multiple of "
                f"num_key_value_heads {self.num_kv_heads!r}"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"head_dim must be even, not {self.head_dim!r}")

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """The configuration in a parsed ``config.json``.

        Raises:
            CheckpointError: the architecture or a feature is not supported, or a value is missing
                or out of range.
        """
        family = _family(raw)
        fields = _Fields({**_FAMILY_DEFAULTS[family], **raw})
        hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        num_layers = fields.size("num_hidden_layers")
        if fields.raw.get("hidden_act", "silu") != "silu":
            raise CheckpointError(f"hidden_act {fields.raw['hidden_act']!r} is not supported, only 'silu'")
        attention_bias = fields.flag("attention_bias") and family in ("llama", "qwen3")
        return cls(
            family=family,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=fields.size("head_dim", hidden_size // num_heads),
            max_position_embeddings=fields.size("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_rope(fields.raw),
            layer_windows=_layer_windows(fields, family, num_layers),
            has_qkv_bias=attention_bias or family == "qwen2",
            has_output_bias=attention_bias,
            has_mlp_bias=fields.flag("mlp_bias") and family == "llama",
            has_qk_norm=family == "qwen3",
            has_tied_embeddings=fields.flag("tie_word_embeddings"),
            eos_ids=token_id_set(fields.raw.get("eos_token_id")),
            stored_dtype=fields.raw.get("dtype") or fields.raw.get("torch_dtype"),
        )


class _Fields:
    """Typed reading of a JSON object; a null counts as left out."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def size(self, name: str, default: int | None = None) -> int:
        value = self.raw.get(name)
        if value is None:
            value = default
        if type(value) is not int or value < 1:
            raise CheckpointError(f"config.json: {name} must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.raw.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise CheckpointError(f"config.json: {name} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.raw.get(name))


def token_id_set(value: object) -> frozenset[int]:
    """An ``eos_token_id`` as found in a JSON file: a number, a list of numbers, or nothing."""
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        if type(token_id) is not int or token_id < 0:
            raise CheckpointError(f"eos_token_id must be a token id or a list of them, not {value!r}")
    return frozenset(ids)


def _family(raw: Mapping[str, Any]) -> str:
    if raw.get("quantization_config"):
        raise CheckpointError("quantized checkpoints are not supported: quantization_config is set")
    architectures = raw.get("architectures") or []
    for name in architectures:
        if name in FAMILIES:
            return FAMILIES[name]
    if not architectures and raw.get("model_type") in FAMILIES.values():
        return str(raw["model_type"])
    raise CheckpointError(
        f"unknown architecture {architectures or raw.get('model_type')!r}; known: {', '.join(FAMILIES)}"
    )


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """transformers 5 writes ``rope_parameters``; older files ``rope_theta`` and ``rope_scaling``."""
    merged: dict[str, Any] = {"rope_theta": raw.get("rope_theta")}
    merged |= raw.get("rope_scaling") or {}
    merged |= raw.get("rope_parameters") or {}
    kind = merged.get("rope_type") or merged.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise CheckpointError(f"rope type {kind!r} is not supported; known: default, linear, llama3")
    if merged.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(f"partial_rotary_factor {merged['partial_rotary_factor']!r} is not supported")
    fields = _Fields(merged)
    theta = fields.number("rope_theta", 10000.0)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig("linear", theta, fields.number("factor"))
    return RopeConfig(
        "llama3",
        theta,
        fields.number("factor"),
        fields.number("low_freq_factor"),
        fields.number("high_freq_factor"),
        fields.size("original_max_position_embeddings"),
    )


def _layer_windows(fields: _Fields, family: str, num_layers: int) -> tuple[int | None, ...]:
    """Mistral: every layer. Qwen: only if asked for, by ``layer_types`` or the last layers."""
    if family == "llama" or fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    window = fields.size("sliding_window")
    if family == "mistral":
        return (window,) * num_layers
    if not fields.flag("use_sliding_window"):
        return (None,) * num_layers
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        first = int(fields.number("max_window_layers", 28)) if fields.raw.get("max_window_layers") != 0 else 0
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise CheckpointError(f"config.json: layer_types does not fit {num_layers} layers: {kinds!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
