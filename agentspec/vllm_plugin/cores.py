"""The processor cores of our threads, where vLLM computes on a CPU.

vLLM binds a worker to the cores that compute. Threads that the worker starts are bound to the same ones, and
take time from the forward pass while another core idles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cores_of_parent() -> Iterator[None]:
    """Let threads that the block starts run on all cores of the process that started this one (Linux)."""
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
