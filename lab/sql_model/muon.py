"""The optimizer of the matrices, in a precision that the machine computes fast."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lab.drafters.training.precision import has_bfloat16


def muon(parameters: Iterable[nn.Parameter], lr: float, device: str) -> torch.optim.Muon:
    """Return Muon for matrices, with the weight decay and the momentum of this training."""
    kind = torch.optim.Muon if has_bfloat16(device) else Float32Muon
    return kind(parameters, lr=lr, weight_decay=0.01, momentum=0.95)


class Float32Muon(torch.optim.Muon):
    """``torch.optim.Muon`` by its defaults, with iterations in float32. The library's are in bfloat16.

    On a CPU that emulates bfloat16 they took three quarters of a training step.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average: Tensor = state["momentum_buffer"]
        average.lerp_(gradient, 1 - momentum)
        ahead = gradient.lerp(average, momentum)  # Nesterov
        parameter.mul_(1 - lr * decay)
        rows, columns = parameter.shape
        update = orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        parameter.add_(update, alpha=-lr * math.sqrt(max(1, rows / columns)))


def orthogonal(
    matrix: Tensor, coefficients: tuple[float, float, float], num_steps: int, least_norm: float
) -> Tensor:
    """Return about the nearest orthogonal matrix, by the quintic Newton-Schulz iteration of Muon.

    Args:
        matrix: [rows, columns], any float dtype, which is the result's too.
    """
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=least_norm)
    for _ in range(num_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
