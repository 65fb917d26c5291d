"""Random weights, for a model of which only the shape matters."""

from __future__ import annotations

import torch

SCALE = 0.02  # as models start out: logits stay finite through any number of layers


class RandomWeights:
    """Random tensors, the same every time; norms are one. Implements :class:`.layer.Weights`."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor of this shape. Its name decides its initial values."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        empty = torch.empty(shape, dtype=self.dtype, device=self.device)
        return empty.normal_(0.0, SCALE, generator=self._generator)
