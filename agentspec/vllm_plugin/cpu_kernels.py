"""A replacement for a kernel of vLLM's CPU build that writes its result into a copy.

The kernel gives each draft token the temperature, top-p and top-k of its request. Without the replacement,
sampled requests get arbitrary values under any speculative method. Their outputs change (vLLM 0.32;
lab/log).
"""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


def repair() -> None:
    """Register the replacement if vLLM has a kernel registry and runs without Triton."""
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        return
    try:
        from vllm.triton_utils.dispatcher import register_kernels
    except ImportError:
        logger.warning(
            "this vLLM's CPU build changes the outputs of sampled requests with any drafts: "
            "use temperature 0, or vLLM 0.32"
        )
        return
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
