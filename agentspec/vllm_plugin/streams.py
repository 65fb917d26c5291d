"""The order of work on the device: a planned step runs between two copies, without the GIL.

Does not import vLLM.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Protocol

from agentspec.forest import RUN_ROW_STEP, RowStep

DRIVER = "libcuda.so.1"


class Stream(Protocol):
    """What runs a step."""

    def run(self, step: RowStep, is_ready: Any) -> None:
        """Run the step once ``is_ready``, the event of its samples' arrival, has happened.

        Raises:
            OSError: the device refused it.
        """


class ImmediateStream:
    """A device whose memory is the host's: samples are there when the step is planned."""

    def run(self, step: RowStep, is_ready: Any) -> None:
        """Run the step now."""
        step.run()


class CudaStream:
    """A CUDA stream. Runs a step as a host function (``cuLaunchHostFunc``), in the stream's order.

    Args:
        stream: the ``torch.cuda.Stream`` of the model.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._launch = _driver().cuLaunchHostFunc

    def run(self, step: RowStep, is_ready: Any) -> None:
        """Enqueue the step. Returns at once; the step must live until it has run."""
        self._stream.wait_event(is_ready)
        error = self._launch(self._stream.cuda_stream, RUN_ROW_STEP, step.address)
        if error:
            raise OSError(f"cuLaunchHostFunc failed with the CUDA error {error}")


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL(DRIVER)
    driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    driver.cuLaunchHostFunc.restype = ctypes.c_int
    return driver
