"""Replaces a kernel of vLLM's build for CPUs that writes its result into a copy of the output."""

from __future__ import annotations

import torch

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


def repair_kernel() -> None:
    """Replace the kernel, if vLLM runs without Triton.

    The kernel gives each draft token the temperature, top-p and top-k of its request. Without the
    replacement, sampled requests get arbitrary values under any speculative method: their outputs change.
    """
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        from vllm.triton_utils.dispatcher import register_kernels

        register_kernels({EXPAND: expand})


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    most_tokens: object = None,
) -> None:
    """Write each request's value once per token; ``ends`` holds the end of each request's tokens."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    output.copy_(torch.where(values == replace_from, replace_to, values).repeat_interleave(counts))
