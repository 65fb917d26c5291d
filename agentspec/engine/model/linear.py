"""One matrix product of the model, in the form that is fastest on this machine."""

from __future__ import annotations

import torch

from agentspec.engine.machine_memory import total_memory

# A packed copy doubles a weight's memory: a model gets one if it fits into this share of the machine's,
PACK_SHARE = 1 / 8
PACK_BYTES = 512 << 20  # or is no larger than this.


class Linear:
    """``x @ weight.T + bias`` for ``x`` of ``[rows, in]``.

    One row is a matrix-vector product, bound by memory: a plain product with the transposed weight
    is quickest. For more rows, oneDNN with a weight packed beforehand is up to twice as fast as the
    general product where the rows are few, which is just the case of verifying a draft. Of large weights
    the general product makes such a copy each time, which can take four times as long.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]`` or None.
        has_packing: also keep a packed copy (float32 on a CPU with oneDNN only, else ignored).
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, has_packing: bool = False
    ) -> None:
        self.weight = weight.t().contiguous()
        self.bias = bias
        self.packed = _pack(weight) if has_packing else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, in]`` to ``[rows, out]``."""
        if self.packed is not None and x.shape[0] > 1:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.packed, self.bias, "none", [], ""
            )
            return product
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``residual + self(x)`` in one operation."""
        if self.packed is not None and x.shape[0] > 1:
            total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, residual, self.packed, self.bias, "add"
            )
            return total
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addmm(residual, x, self.weight)


def has_room_to_pack(num_parameters: int) -> bool:
    """Return True if this machine, or this container, has the memory for packed copies in float32."""
    return num_parameters * 4 <= max(PACK_BYTES, PACK_SHARE * total_memory())


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight in oneDNN's own layout; None where this build or device can't."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch._C._has_mkldnn:
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        torch.ops.mkldnn._linear_pointwise.binary(
            weight.new_zeros(2, weight.shape[1]), weight.new_zeros(2, weight.shape[0]), packed, None, "add"
        )
    except (AttributeError, RuntimeError):  # torch's own operators for its compiler: may be absent
        return None
    return packed
