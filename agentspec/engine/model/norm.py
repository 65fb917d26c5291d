"""Root-mean-square normalization over the last axis."""

from __future__ import annotations

import math

import torch
from torch.nn import functional


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight``.

    torch's ``rms_norm`` is six small operations on the CPU. There this class divides by
    ``hypot(|x|, sqrt(size * eps))``. The remaining factor, ``weight * sqrt(size)``, is ``scale``, which the
    caller multiplies into the columns of the following matrix. On other devices ``scale`` is None.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.size = weight.shape[0]
        is_folded = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.scale = weight * math.sqrt(self.size) if is_folded else None
        self._floor = torch.tensor(math.sqrt(self.size * eps))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of ``[rows, size]``, without ``scale`` if there is one."""
        if self.scale is None:
            return self.whole(x)
        return torch.div(x, torch.linalg.vector_norm(x, 2, 1, True).hypot_(self._floor))

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of ``[rows, size]``, including ``scale``."""
        return functional.rms_norm(x, (self.size,), self.weight, self.eps)

    def without_scale(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, size]`` of :meth:`whole` to what a folded matrix takes; 0 where ``weight`` is."""
        return x if self.scale is None else torch.where(self.scale == 0, 0, x / self.scale)

    def fold(self, weight: torch.Tensor) -> torch.Tensor:
        """The matrix ``[out, size]`` that follows, with ``scale`` in its columns."""
        return weight if self.scale is None else weight * self.scale
