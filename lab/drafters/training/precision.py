"""The precision that a training computes in."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # instructions of x86 and of Arm


def autocast(device: str) -> torch.autocast:
    """Return a context that computes in bfloat16, or in float32 on a CPU that would have to emulate it.

    Without instructions for it, a product of matrices took 48 times as long as in float32.
    """
    return torch.autocast(device, torch.bfloat16, enabled=has_bfloat16(device))


def has_bfloat16(device: str) -> bool:
    """Return whether a device has instructions for bfloat16. All but CPUs are taken to have them."""
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # an older version can't say
        return True
    found: Mapping[str, object] = torch.cpu.get_capabilities()
    return any(found.get(name) for name in _BFLOAT16)
