"""How soon an output that ended in one process drafts in another one."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from agentspec.reporting.report import Announce
from benchmarks.fleet.engine import Seen, mark, running_corpus, watch
from benchmarks.fleet.fleet import forest
from benchmarks.fleet.places import DRIVERS, empty_place
from benchmarks.fleet.sizes import Sizes
from benchmarks.gateway.percentiles import at
from benchmarks.harness.process import in_fresh_process

Figures = dict[str, Any]

QUIET_GAP_S = 1.0  # longer than a publisher's window: each output is sent at once
_FIRST_MARK = 1 << 30  # it is not looked for
_START_LIMIT_S = 120.0
_PATIENCE_S = 10.0  # after the last output


def measure(sizes: Sizes, announce: Announce) -> Figures:
    """Measure both drivers, one output at a time and in a steady stream."""
    by_driver: Figures = {}
    for driver in DRIVERS:
        announce(f"fresh: {driver}")
        with empty_place(driver) as location:
            by_driver[driver] = in_fresh_process(_measured, location, sizes)
    return {
        **{
            f"fresh_ms_p99_{driver}": max(one["fresh_ms_p99"] for one in found.values())
            for driver, found in by_driver.items()
        },
        "num_lost": sum(one["num_lost"] for found in by_driver.values() for one in found.values()),
        "by_driver": by_driver,
    }


class Watcher:
    """Another process whose engine looks for marks."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @classmethod
    @contextmanager
    def running(cls, location: str) -> Iterator[Watcher]:
        """Start the process, and wait until its engine runs."""
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=watch, args=(location, other), daemon=True)
        process.start()
        try:
            if not pipe.poll(_START_LIMIT_S):
                raise TimeoutError(f"the other engine did not start within {_START_LIMIT_S:g} s")
            pipe.recv()
            yield cls(pipe)
        finally:
            process.kill()
            process.join()

    def look_for(self, numbers: range) -> None:
        """Let it look for these marks."""
        self._pipe.send(numbers)

    def end(self) -> Seen:
        """Return what it saw."""
        self._pipe.send(None)
        seen: Seen = self._pipe.recv()
        return seen


def _measured(location: str, sizes: Sizes) -> dict[str, Figures]:
    with Watcher.running(location) as watcher, running_corpus(location, forest()) as corpus:
        corpus.publish(mark(_FIRST_MARK))  # so that both follow the tenant
        time.sleep(3.0)
        quiet = range(sizes.fresh_outputs // 4)
        steady = range(len(quiet), len(quiet) + sizes.fresh_outputs)
        published_s = {}
        for number in range(steady.stop):
            time.sleep(QUIET_GAP_S if number in quiet else 1 / sizes.fresh_rate_per_s)
            output = mark(number)
            watcher.look_for(range(number, number + 1))
            published_s[number] = time.monotonic()
            corpus.publish(output)
        time.sleep(_PATIENCE_S)
        seen = watcher.end()
    return {
        "quiet": _figures(quiet, published_s, seen),
        "steady": _figures(steady, published_s, seen),
    }


def _figures(numbers: range, published_s: dict[int, float], seen: Seen) -> Figures:
    ms = [(seen.at_s[number] - published_s[number]) * 1e3 for number in numbers if number in seen.at_s]
    values = np.array(ms or [_PATIENCE_S * 1e3])
    return {
        **{f"fresh_ms_p{percentile}": at(values, percentile) for percentile in (50, 90, 99)},
        "num_outputs": len(numbers),
        "num_lost": len(numbers) - len(ms),
    }
