"""Threads of a corpus: a loop that survives errors, a limit of CPU time, and pauses while a store fails."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("agentspec")

FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 8.0  # so that calls succeed again within ten seconds
_LEAST_WAIT_S = 0.002


class Worker:
    """Repeats a step in a thread until it is closed. A step that raises is logged and repeated after a pause.

    Args:
        name: name of the thread, also used in the log.
        step: must return soon after ``closing`` is set.
        begin: called in the thread before the first step.
        end: called in the thread after the last step.
        retry_s: seconds to wait after an error.

    Attributes:
        closing: set to end the thread.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        *,
        begin: Callable[[], object] = lambda: None,
        end: Callable[[], object] = lambda: None,
        retry_s: float = 1.0,
    ) -> None:
        self._name = name
        self._step = step
        self._begin = begin
        self._end = end
        self._retry_s = retry_s
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agentspec-{name}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the thread. Wait for it, at most ``timeout_s``."""
        self.closing.set()
        if self.is_alive:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._attempt(self._begin)
        while not self.closing.is_set():
            if not self._attempt(self._step):
                self.closing.wait(self._retry_s)
        self._attempt(self._end)

    def _attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except Exception:  # log the error and continue
            logger.exception("%s: a step failed", self._name)
            return False
        return True


class CpuShare:
    """Keeps a thread's CPU time below a share of the elapsed time. Only that thread may use the object.

    An idle period earns no credit: a burst after it is slowed down as well.

    Args:
        share: share of one core, above 0; 1 or more never waits.
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
        self._since_s: float | None = None  # start of the interval in which the share is kept
        self._cpu_since_s = 0.0
        self._free_until_s = 0.0
        self.cpu_s = 0.0  # CPU seconds used so far

    def begin(self) -> None:
        """Start to measure, leaving out the thread's CPU time until now."""
        self._since_s, self._cpu_since_s = self._clock(), self._cpu_clock()

    def free(self, duration_s: float) -> None:
        """Set no limit for some seconds."""
        self._free_until_s = self._clock() + duration_s

    def pause(self) -> None:
        """Wait until the CPU time since :meth:`begin` is within the share."""
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


class CircuitBreaker:
    """Opens at a failure. The pause doubles with each further failure; a success closes the breaker.

    Logs one line per change. Not thread-safe.

    Args:
        what: name of the paused activity, for the log.
        clock: monotonic seconds.
        spread: returns a random factor of the pause, so that engines do not all retry at the same time.
    """

    def __init__(
        self,
        what: str,
        clock: Callable[[], float],
        spread: Callable[[], float] = lambda: random.uniform(0.5, 1.0),
    ) -> None:
        self._what = what
        self._clock = clock
        self._spread = spread
        self._pause_s = 0.0
        self._retry_s = 0.0
        self.num_failures = 0

    @property
    def is_open(self) -> bool:
        """True from the first failure to the next success."""
        return self._pause_s > 0

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt is due; 0 if it may be made now."""
        return max(0.0, self._retry_s - self._clock()) if self.is_open else 0.0

    def fail(self, error: Exception) -> None:
        """Open, or stay open for longer."""
        if not self.is_open:
            logger.warning("%s pauses: %s", self._what, error)
        self.num_failures += 1
        self._pause_s = min(MOST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._retry_s = self._clock() + self._pause_s * self._spread()

    def succeed(self) -> None:
        """Close."""
        if self.is_open:
            logger.warning("%s continues", self._what)
        self._pause_s = 0.0
