"""Medusa heads (arXiv 2401.10774): one small network per future position, all from the same features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from agentspec.engine.batch import Segment
from agentspec.engine.model.checkpoint_config import CONFIG_FILE, read_json
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.layer import Weights
from agentspec.engine.model.linear import Linear
from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError
from lab.drafters.head_weights import HeadWeights

MOST_HEADS = 16
WEIGHTS_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


@dataclass(frozen=True, slots=True)
class _Head:
    """Residual blocks, and the matrix to the vocabulary."""

    blocks: tuple[Linear, ...]
    vocabulary: Linear

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            rows = rows + functional.silu(block(rows))
        return self.vocabulary(rows)


class MedusaHeads:
    """A :class:`~lab.drafters.model_drafter.DraftNetwork` without a cache.

    Head n predicts the n-th token after the last one, whatever is between. So all nodes of a level of the
    tree have the same continuations.

    Args:
        num_heads: most levels of a draft.
        num_blocks: residual blocks of a head.
        weights: their tensors: ``N.B.linear.weight`` and ``.bias`` of block B, then ``N.<blocks>.weight``.
        target: the served model.

    Raises:
        CheckpointError: a tensor is missing or misshapen.
    """

    def __init__(self, num_heads: int, num_blocks: int, weights: Weights, target: Transformer) -> None:
        self.hidden_layers: tuple[int, ...] = (target.config.num_layers,)
        self.most_levels: int | None = num_heads
        self._target = target
        hidden, vocab = target.config.hidden_size, target.config.vocab_size
        self.vocab_size = vocab
        with torch.inference_mode():
            self._heads = [
                _Head(
                    tuple(
                        Linear(
                            weights.take(f"{head}.{block}.linear.weight", hidden, hidden),
                            weights.take(f"{head}.{block}.linear.bias", hidden),
                        )
                        for block in range(num_blocks)
                    ),
                    Linear(weights.take(f"{head}.{num_blocks}.weight", vocab, hidden)),
                )
                for head in range(num_heads)
            ]

    def make_cache(self, num_slots: int, max_len: int) -> None:
        """Return None: there is no attention."""

    def read(self, features: torch.Tensor | None) -> torch.Tensor:
        """Return the features behind the served model's last norm."""
        assert features is not None
        return self._target.normed(features)

    def forward(
        self, segments: Sequence[Segment], carried: torch.Tensor, cache: KVCache | None
    ) -> torch.Tensor:
        """Return the same: a draft continues the features of the text."""
        return carried

    def log_probs(self, carried: torch.Tensor, level: int) -> torch.Tensor:
        """Return log chances by the head of this level, float32 ``[rows, vocab]``."""
        with torch.inference_mode():
            return functional.log_softmax(self._heads[level - 1](carried).float(), 1)

    def token_ids(self, drafted: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the tokens as int32: both vocabularies are the same."""
        return drafted.astype(np.int32)


def load_medusa(path: str | Path, target: Transformer) -> MedusaHeads:
    """Load the heads in directory ``path`` in the published format, with the served model's dtype and device.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor is missing or has another shape.
    """
    directory = Path(path)
    raw = read_json(directory / CONFIG_FILE)
    for name in ("medusa_num_heads", "medusa_num_layers"):
        value = raw.get(name)
        if type(value) is not int or not 1 <= value <= MOST_HEADS:
            raise CheckpointError(f"config.json: {name} must be 1 to {MOST_HEADS}, not {value!r}")
    weights = HeadWeights(directory, WEIGHTS_FILES, target.device, target.dtype)
    return MedusaHeads(raw["medusa_num_heads"], raw["medusa_num_layers"], weights, target)
