"""Runs a planned step between two copies in the order of the device's work, without the GIL.

Does not import vLLM.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from agentspec.forest import RUN_ROW_STEP, RowStep

DRIVER = "libcuda.so.1"


class ImmediateStream:
    """Runs steps immediately, for a device that shares the host's memory: samples are there when planned."""

    def run(self, step: RowStep, is_ready: Any) -> None:
        """Run the step now."""
        step.run()

    def copying(self) -> AbstractContextManager[Any]:
        """Return an empty context."""
        return nullcontext()

    def join(self) -> None:
        """Do nothing: the step has run."""


class CudaStream:
    """A CUDA stream. Runs a step as a host function (``cuLaunchHostFunc``), in the stream's order.

    Args:
        stream: the ``torch.cuda.Stream`` of the model.
        side: another stream, on which the step runs at the same time as the draft model; None = on
            ``stream``.
    """

    def __init__(self, stream: Any, side: Any = None) -> None:
        self._model, self._side = stream, side
        self._stream = stream if side is None else side
        self._launch = _driver().cuLaunchHostFunc

    def run(self, step: RowStep, is_ready: Any) -> None:
        """Enqueue the step and return immediately. The caller keeps the step alive until it has run."""
        self._stream.wait_event(is_ready)
        error = self._launch(self._stream.cuda_stream, RUN_ROW_STEP, step.address)
        if error:
            raise OSError(f"cuLaunchHostFunc failed with the CUDA error {error}")

    def copying(self) -> AbstractContextManager[Any]:
        """Return the context of the step's stream."""
        return nullcontext() if self._side is None else _current(self._side)

    def join(self) -> None:
        """Have the model's stream wait for the step and its copies, without waiting here."""
        if self._side is not None:
            self._model.wait_stream(self._side)


def _current(stream: Any) -> AbstractContextManager[Any]:
    import torch

    return torch.cuda.stream(stream)


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL(DRIVER)
    driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    driver.cuLaunchHostFunc.restype = ctypes.c_int
    return driver
