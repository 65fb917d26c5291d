"""The precision that a training computes in."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # instructions of x86 and of Arm


def autocast(device: str) -> torch.autocast:
    """Return a context that computes in bfloat16, or in float32 on a CPU that would have to emulate it.

    Without instructions for it, a product of matrices took 48 times as long as in float32.
    """
    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu" or _has_bfloat16())


def _has_bfloat16() -> bool:
    if not hasattr(torch.cpu, "get_capabilities"):  # an older version, which can't say
        return True
    found: Mapping[str, object] = torch.cpu.get_capabilities()
    return any(found.get(name) for name in _BFLOAT16)
