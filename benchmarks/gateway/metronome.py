"""Calls at exact times: a kernel timer, since event loops round theirs to milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

LEAD_NS = 10_000_000  # from now to the first beat
_BY_THE_CLOCK = 1  # TFD_TIMER_ABSTIME
_NONBLOCKING = os.O_NONBLOCK | os.O_CLOEXEC


class Metronome:
    """``call(number, due_ns)`` at every beat, on the running loop, ``num_beats`` times.

    Beats that a busy loop missed are not lost: they run as soon as possible, with the time they were due.

    Raises:
        OSError: the system has no kernel timers (only Linux does).
    """

    def __init__(self, interval_ns: int, num_beats: int, call: Callable[[int, int], object]) -> None:
        self._interval_ns = interval_ns
        self._num_beats = num_beats
        self._call = call
        self._beat = 0

    async def run(self) -> None:
        """Run until the last beat."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self._start_ns = time.monotonic_ns() + LEAD_NS
        timer = _timer(self._start_ns, self._interval_ns)
        try:
            loop.add_reader(timer, self._advance, timer, over)
            await over.wait()
        finally:
            loop.remove_reader(timer)
            os.close(timer)

    def _advance(self, timer: int, over: asyncio.Event) -> None:
        due = int.from_bytes(os.read(timer, 8), "little")
        for _ in range(min(due, self._num_beats - self._beat)):
            self._call(self._beat, self._start_ns + self._beat * self._interval_ns)
            self._beat += 1
        if self._beat == self._num_beats:
            over.set()


def _timer(start_ns: int, interval_ns: int) -> int:
    """Return a file descriptor that becomes readable when a beat is due."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = int(libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCKING))
    times = (ctypes.c_long * 4)(*divmod(interval_ns, 10**9), *divmod(start_ns, 10**9))
    if timer < 0 or libc.timerfd_settime(timer, _BY_THE_CLOCK, times, None):
        raise OSError(ctypes.get_errno(), "no kernel timer")
    return timer
