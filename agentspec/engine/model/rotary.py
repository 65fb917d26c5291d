"""Rotary position embedding, as a multiplication of complex numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.config import ModelConfig, RopeConfig


class RotaryTable:
    """``exp(i * position * frequency)`` for every position, extended on demand.

    The checkpoint's heads pair dimension j with j + head_dim/2; :func:`interleave` reorders the
    weights so that a pair is adjacent, and one complex product turns all heads of all rows. Scores
    are unchanged, as queries and keys are reordered alike.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._frequencies = frequencies(config.rope, config.head_dim).to(device)
        self._table = self._rows(min(config.max_position_embeddings, 2048))

    def of(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Return :meth:`at` for all tokens of some segments."""
        positions = torch.from_numpy(np.concatenate([segment.positions() for segment in segments]))
        max_position = max(segment.end for segment in segments) - 1
        return self.at(positions.to(self._frequencies.device), max_position)

    def at(self, positions: torch.Tensor, max_position: int) -> torch.Tensor:
        """complex64 ``[rows, 1, head_dim / 2]`` for ``positions`` ``[rows]``, none above the maximum."""
        if max_position >= len(self._table):
            self._table = self._rows(max(max_position + 1, 2 * len(self._table)))
        return self._table.index_select(0, positions).unsqueeze_(1)

    def _rows(self, size: int) -> torch.Tensor:
        positions = torch.arange(size, dtype=torch.float32, device=self._frequencies.device)
        angles = positions[:, None] * self._frequencies
        return torch.polar(torch.ones_like(angles), angles)


def frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 ``[head_dim / 2]``: radians per position."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.kind == "llama3":
        return _llama3_frequencies(base, rope)
    return base / rope.factor


def _llama3_frequencies(base: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by ``factor``, short ones kept, those between blended."""
    turns = rope.original_max_position_embeddings * base / (2 * math.pi)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = share.clamp(0, 1)  # 0: stretched, 1: kept
    return (1 - share) * base / rope.factor + share * base


def interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows ``[heads * head_dim, ...]`` with dimension j and j + head_dim/2 of a head adjacent."""
    heads = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Turn ``heads``, ``[rows, n, head_dim]`` with interleaved dimensions, in place."""
    rows, num_heads, head_dim = heads.shape
    if heads.dtype == torch.float32:
        pairs = heads.as_strided(
            (rows, num_heads, head_dim // 2, 2), (*heads.stride()[:2], 2, 1), heads.storage_offset()
        )
        torch.view_as_complex(pairs).mul_(rotation)
        return
    wide = heads if heads.dtype == torch.float64 else heads.float()
    turned = torch.view_as_complex(wide.reshape(rows, num_heads, -1, 2)) * rotation
    heads.copy_(torch.view_as_real(turned).flatten(-2))
