"""A thread's share of a processor core."""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_WAIT_S = 0.002


class CpuShare:
    """Keeps a thread's own CPU time below a share of the time that passes. Only that thread uses it.

    Idle time is not saved up: a burst after it is slowed down as well.

    Args:
        share: of one core, above 0; 1 or more never waits.
        wait: sleeps for some seconds.
        clock: monotonic seconds.
        cpu_clock: CPU seconds of the calling thread.
    """

    def __init__(
        self,
        share: float,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._wait = wait
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._since_s: float | None = None  # since when the share has been kept
        self._cpu_since_s = 0.0
        self._free_until_s = 0.0
        self.cpu_s = 0.0  # used so far

    def begin(self) -> None:
        """Begin to measure. The thread has done something else until now."""
        self._since_s, self._cpu_since_s = self._clock(), self._cpu_clock()

    def free(self, duration_s: float) -> None:
        """Never wait for some time."""
        self._free_until_s = self._clock() + duration_s

    def pause(self) -> None:
        """Wait until the work since :meth:`begin` is within the share."""
        now_s, cpu_s = self._clock(), self._cpu_clock()
        if self._since_s is None:
            return self.begin()
        used_s = cpu_s - self._cpu_since_s
        owed_s = used_s / self._share - (now_s - self._since_s)
        if 0 < owed_s < _LEAST_WAIT_S:
            return None
        self.cpu_s += used_s
        if owed_s > 0 and now_s >= self._free_until_s:
            self._wait(owed_s)
        return self.begin()
