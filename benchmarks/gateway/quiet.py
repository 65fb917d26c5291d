"""What else the machine does: it is told with each figure, and can be waited out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import psutil

MOST_OTHERS = 0.2  # cores, of work that does not disturb
WINDOW_S = 1.0

Result = TypeVar("Result")


class Quiet:
    """Measures while nobody else works, as long as there is patience; then whatever else goes on."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s

    def measured(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """What the work returns, and the cores that others kept busy meanwhile.

        It is begun when the machine is quiet, and done again if that did not last.
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
    """Counts, from when it is made, the processor time of all processes but this one and its children."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._all_s, self._own_s = _all_cpu_s(), _own_cpu_s()

    @property
    def seconds(self) -> float:
        """By the clock."""
        return time.monotonic() - self._begin_s

    def others(self) -> float:
        """Cores that the others kept busy on average."""
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
