"""Duration of calls, and memory after each."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, ParamSpec, TypeVar

LIMIT_MS = 5.0
SLOW_MS = 4.0  # such calls are recorded individually
WITHDRAWAL = "withdraw"  # neither evicts nor compacts; its time grows with the length of the output
BINS_PER_MS = 100
FULL = 0.8  # share of the budget from which a forest counts as full

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Times:
    """Durations in bins of a hundredth of a millisecond: a million of them take little memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total_s = 0.0
        self.max_ms = 0.0

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.total_s += seconds
        ms = 1e3 * seconds
        self.max_ms = max(self.max_ms, ms)
        self._counts[int(ms * BINS_PER_MS)] += 1

    def include(self, others: Iterable[Times]) -> Times:
        """Add all durations of the others; return itself."""
        for other in others:
            self._counts.update(other._counts)
            self.total_s += other.total_s
            self.max_ms = max(self.max_ms, other.max_ms)
        return self

    def __len__(self) -> int:
        return self._counts.total()

    def num_over(self, limit_ms: float) -> int:
        """Return the number of durations of at least ``limit_ms``."""
        return sum(number for place, number in self._counts.items() if place >= limit_ms * BINS_PER_MS)

    def quantile_ms(self, share: float) -> float:
        """Return the duration that this share did not exceed, to a hundredth of a millisecond."""
        left = share * len(self)
        for place, number in sorted(self._counts.items()):
            left -= number
            if left <= 0:
                return min((place + 1) / BINS_PER_MS, self.max_ms)
        return self.max_ms

    def figures(self) -> dict[str, float]:
        """Return the distribution in ms, and the number over the limit."""
        return {
            "p50": self.quantile_ms(0.5),
            "p99.9": self.quantile_ms(0.999),
            "max": self.max_ms,
            "num_over_limit": self.num_over(LIMIT_MS),
        }


class Meter:
    """Makes calls; records the calling thread's CPU time, wall time and the memory afterwards.

    Attributes:
        max_bytes: the most memory after any call.
        min_bytes: the least memory after any call since it was first full; None if it never was.
        cpu: CPU times by kind of call.
        wall: wall times by kind of call.
        slow: CPU time in ms by number of call, for slow calls other than withdrawals.
    """

    def __init__(self, memory_bytes: Callable[[], int], budget_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._full_bytes = FULL * budget_bytes
        self.max_bytes = 0
        self.min_bytes: int | None = None
        self.cpu: defaultdict[str, Times] = defaultdict(Times)
        self.wall: defaultdict[str, Times] = defaultdict(Times)
        self.slow: dict[int, float] = {}
        self._numbers = count()

    def call(
        self,
        kind: str,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call the function, record its times, and return its result."""
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        result = function(*args, **kwargs)
        cpu_s, wall_s = time.thread_time() - begin_cpu_s, time.perf_counter() - begin_s
        number = next(self._numbers)
        if 1e3 * cpu_s >= SLOW_MS and kind != WITHDRAWAL:
            self.slow[number] = 1e3 * cpu_s
        self.cpu[kind].add(cpu_s)
        self.wall[kind].add(wall_s)
        self._note(self._memory_bytes())
        return result

    def _note(self, memory_bytes: int) -> None:
        self.max_bytes = max(self.max_bytes, memory_bytes)
        if self.max_bytes >= self._full_bytes:
            self.min_bytes = memory_bytes if self.min_bytes is None else min(self.min_bytes, memory_bytes)

    def total_s(self) -> float:
        """Return the wall time of all calls."""
        return sum(times.total_s for times in self.wall.values())

    def figures(self) -> dict[str, Any]:
        """Return distributions by kind of call, in ms."""
        return {
            kind: {"count": len(cpu), "cpu_ms": cpu.figures(), "wall_ms": self.wall[kind].figures()}
            for kind, cpu in self.cpu.items()
        }
