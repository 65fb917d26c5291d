"""Other load on the machine: reported with each figure; a benchmark can wait until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import psutil

MOST_OTHERS = 0.2  # cores; less does not disturb
WINDOW_S = 1.0

Result = TypeVar("Result")


class Quiet:
    """Measures only while the machine is quiet, until ``patience_s`` is used up; then in any case."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s

    def measured(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """Return the work's result, and the average number of cores that other processes kept busy.

        The work begins when the machine is quiet, and is repeated if it did not stay so.
        """
        while True:
            while self._patience_s > 0 and _others_now() > MOST_OTHERS:
                self._patience_s -= WINDOW_S
            watch = Watch()
            result = work()
            others = watch.others()
            if others <= MOST_OTHERS or self._patience_s <= 0:
                return result, others
            self._patience_s -= watch.seconds


class Watch:
    """Processor time since creation of all processes except this one and its children."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._all_s, self._own_s = _all_cpu_s(), _own_cpu_s()

    @property
    def seconds(self) -> float:
        """Wall time since creation."""
        return time.monotonic() - self._begin_s

    def others(self) -> float:
        """Return the average number of cores that other processes kept busy."""
        others_s = (_all_cpu_s() - self._all_s) - (_own_cpu_s() - self._own_s)
        return max(others_s, 0.0) / self.seconds


def _others_now() -> float:
    watch = Watch()
    time.sleep(WINDOW_S)
    return watch.others()


def _all_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _own_cpu_s() -> float:
    return sum(_each_cpu_s())


def _each_cpu_s() -> Iterator[float]:
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            yield sum(process.cpu_times()[:2])
