"""What vLLM's build for CPUs needs: cores for the plug-in's threads, and a kernel that works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


@contextmanager
def cores_of_parent() -> Iterator[None]:
    """Let threads that the block starts run on all cores of the process that started this one (Linux).

    vLLM binds a worker to the cores that compute. Threads that the worker starts are bound to the same ones,
    and take time from the forward pass while another core idles.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, own | os.sched_getaffinity(os.getppid()))
    except OSError:  # the parent has ended, or a sandbox forbids it
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def repair_kernel() -> None:
    """Replace a kernel that writes its result into a copy, if vLLM runs without Triton.

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
