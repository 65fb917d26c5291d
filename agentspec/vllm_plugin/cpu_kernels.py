"""A kernel of vLLM's CPU build that writes its result into a copy, replaced by one that does not.

It hands each draft token its request's temperature, top-p and top-k. Left alone, sampled requests get
anything for these while there is speculation of whatever method, and outputs change (vLLM 0.32; docs/log.md).
"""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


def repair() -> None:
    """Register the replacement, where vLLM has a registry of kernels and runs without Triton."""
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
    """Each request's value for each of its tokens; ``ends``: where a request's tokens end."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    output.copy_(torch.where(values == replace_from, replace_to, values).repeat_interleave(counts))
