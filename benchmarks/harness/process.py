"""Measurement utilities: a fresh process, resident memory, garbage collection."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_fresh_process(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Run the function in a process of its own and return its result or raise its exception."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def resident_bytes(*, trim: bool = False) -> int:
    """Return this process's resident memory in bytes. With ``trim``, free memory is released first."""
    if trim:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect Python's garbage before a measurement, and not during it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
