"""The measured model: a checkpoint, or a shape with random weights; and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentspec.engine.engine_config import DTYPES
from agentspec.engine.model.checkpoint import load_shape, model_of_shape
from agentspec.engine.model.checkpoint_config import TOKENIZER_FILE, read_json
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.models import bundled_model_dir
from agentspec.replay.calls import TEKKEN, load_tokenizer

TEKKEN_SIZE = 131_072
BUNDLED = "bundled"  # the shape of the bundled model

_LIKE_SMOLLM = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
_LIKE_QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
_LIKE_LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "smollm-135m": _LIKE_SMOLLM,
    "qwen-0.5b": _LIKE_QWEN,
    "llama-1b": _LIKE_LLAMA,
}
SHAPES = (BUNDLED, *CONFIGS)
_SHARED = {"vocab_size": TEKKEN_SIZE, "max_position_embeddings": 32768, "tie_word_embeddings": True}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen options. ``model`` takes precedence over ``shape``."""

    model: Path | None
    shape: str
    device: str = "cpu"
    dtype: str | None = None
    threads: int | None = None

    @property
    def name(self) -> str:
        """The model's name in the report."""
        if self.model is not None:
            return self.model.resolve().name
        path = Path(self.shape)
        return path.resolve().parent.name if path.suffix == ".json" else self.shape


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A model and its tokens.

    Attributes:
        tokenizer: its end token ends an output. Shapes without a tokenizer use the bundled one.
        vocabulary: the tokenizer for texts, as a name for ``load_tokenizer``.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    vocabulary: str

    def encode(self, text: str) -> Tokens:
        """Return the token ids of a text, except those that end an output.

        Raises:
            ConfigError: the model's vocabulary lacks a token of the text.
        """
        ids = load_tokenizer(self.vocabulary)(text)
        if len(ids) and (highest := int(ids.max())) >= self.model.config.vocab_size:
            raise ConfigError(
                f"{self.name!r} has {self.model.config.vocab_size} tokens and {self.vocabulary!r} has a token"
                f" {highest!r}: put the model's tokenizer.json next to its config.json"
            )
        return ids[~np.isin(ids, list(self.tokenizer.eos_ids))]


def load(chosen: Chosen) -> Measured:
    """Load the model and its tokenizer.

    Raises:
        ConfigError: the shape, device or dtype does not exist.
        CheckpointError: a folder or a config.json can't be loaded.
    """
    if chosen.dtype is not None and chosen.dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {DTYPES}, not {chosen.dtype!r}")
    is_bundled = chosen.model is None and chosen.shape == BUNDLED
    threads = chosen.threads or (1 if is_bundled else None)  # a second thread slows down each of its steps
    if threads is not None:
        torch.set_num_threads(threads)
    dtype = None if chosen.dtype is None else getattr(torch, chosen.dtype)
    try:
        if chosen.model is not None or is_bundled:
            folder = chosen.model or bundled_model_dir()
            model = load_shape(folder, device=chosen.device, dtype=dtype)
        else:
            config, folder = _config(chosen.shape)
            model = model_of_shape(config, device=chosen.device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:  # torch: no such device, not enough memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the model can't be made on device {chosen.device!r}: {reason}") from error
    has_own = (folder / TOKENIZER_FILE).is_file()
    tokenizer = Tokenizer.load(folder if has_own else bundled_model_dir())
    return Measured(chosen.name, model, tokenizer, str(folder) if has_own else TEKKEN)


def _config(shape: str) -> tuple[ModelConfig, Path]:
    """Return the shape's configuration, and the folder that may have a tokenizer."""
    if shape in CONFIGS:
        return ModelConfig.from_json({**CONFIGS[shape], **_SHARED}), Path(f"no folder of {shape}")
    path = Path(shape)
    if path.suffix != ".json":
        raise ConfigError(f"a shape is one of {SHAPES} or a config.json, not {shape!r}")
    return ModelConfig.from_json(read_json(path)), path.parent
