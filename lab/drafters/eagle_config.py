"""The shape of an EAGLE-3 head, read from its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.engine.model.config import ModelConfig
from agentspec.errors import CheckpointError

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """An EAGLE-3 head for one served model.

    Attributes:
        model: its layer, as a model of one layer; ``vocab_size`` is the served model's.
        draft_vocab_size: tokens that it can draft.
        target_hidden_size: width of the served model's residual stream.
        hidden_layers: layers of the served model whose inputs it reads.
        has_normed_residual: its residual stream begins behind the norm of the features.
        has_features_norm: the features of all layers together are normed first.
        has_layer_norms: those of each layer are.
        has_normed_output: it hands on what is behind its last norm.
    """

    model: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    hidden_layers: tuple[int, ...]
    has_normed_residual: bool = False
    has_features_norm: bool = False
    has_layer_norms: bool = False
    has_normed_output: bool = False

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], target: ModelConfig) -> EagleConfig:
        """Return the configuration in a parsed ``config.json``, as the published checkpoints have it.

        Args:
            target: the served model's.

        Raises:
            CheckpointError: it is no EAGLE-3 head, it is of another model, or a value is missing or not
                supported.
        """
        architectures = raw.get("architectures") or []
        if not any(name in ARCHITECTURES for name in architectures):
            raise CheckpointError(
                f"no EAGLE-3 head: its architectures are {architectures!r}, not {ARCHITECTURES}"
            )
        if raw.get("num_hidden_layers", 1) != 1:
            raise CheckpointError(f"an EAGLE-3 head has one layer, not {raw['num_hidden_layers']!r}")
        eagle = raw.get("eagle_config") or {}
        model = ModelConfig.from_json({**raw, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1})
        if model.vocab_size != target.vocab_size:
            raise CheckpointError(
                f"the head is for a vocabulary of {model.vocab_size} tokens, the served model has "
                f"{target.vocab_size}"
            )
        width = raw.get("target_hidden_size") or model.hidden_size
        if width != target.hidden_size:
            raise CheckpointError(
                f"the head is for a model of hidden size {width}, the served one has {target.hidden_size}"
            )
        return cls(
            model,
            _draft_vocab_size(raw, model),
            width,
            _hidden_layers(raw.get(_LAYERS) or eagle.get(_LAYERS), target.num_layers),
            bool(raw.get("norm_before_residual")),
            bool(eagle.get("norm_before_fc", raw.get("norm_before_fc"))),
            bool(raw.get("fc_norm")),
            bool(raw.get("norm_output")),
        )


def _draft_vocab_size(raw: Mapping[str, Any], model: ModelConfig) -> int:
    size = raw.get("draft_vocab_size") or model.vocab_size
    if type(size) is not int or not 1 <= size <= model.vocab_size:
        raise CheckpointError(f"draft_vocab_size must be 1 to {model.vocab_size}, not {size!r}")
    return size


def _hidden_layers(named: object, num_layers: int) -> tuple[int, ...]:
    """Return the layers in ascending order. If none are named, they are those of vLLM."""
    layers = (2, num_layers // 2, num_layers - 3) if named is None else named
    if not isinstance(layers, list | tuple) or not all(
        type(layer) is int and 0 <= layer <= num_layers for layer in layers
    ):
        raise CheckpointError(f"{_LAYERS} must be layers of 0 to {num_layers}, not {layers!r}")
    if not layers or len(set(layers)) < len(layers):
        raise CheckpointError(f"{_LAYERS} must name different layers, not {layers!r}")
    return tuple(sorted(layers))
