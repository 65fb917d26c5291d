"""A store that fails during load: do calls raise, do they take longer, and when is all as before?"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.corpus.sqlite_store import FILE
from agentspec.reporting.report import Announce
from benchmarks.fleet.engine import LoggedErrors, Watcher, mark, running_corpus
from benchmarks.fleet.fleet import forest
from benchmarks.fleet.places import REDIS, SQLITE, redis_server
from benchmarks.fleet.sizes import Sizes
from benchmarks.gateway.percentiles import at
from benchmarks.harness.process import in_fresh_process

Figures = dict[str, Any]

FRESH_S = 1.0  # an output that drafts elsewhere within this time arrived as usual
RECOVERED = 0.95  # of the outputs
JUDGED_S = 2.0
_BEFORE_S = 5.0
AFTER_S = 15.0
_PUBLISH_PER_S = 50

Fault = Callable[[], AbstractContextManager[None]]


def measure(sizes: Sizes, announce: Announce) -> Figures:
    """Let each kind of fault happen while outputs are published and learned."""
    faults: Figures = {}
    for driver, name in [
        *((REDIS, name) for name in REDIS_FAULTS),
        *((SQLITE, name) for name in SQLITE_FAULTS),
    ]:
        announce(f"outage: {driver} {name}")
        faults[f"{driver} {name}"] = in_fresh_process(_measured, driver, name, sizes)
    return {
        "outage_errors": sum(one["num_errors"] for one in faults.values()),
        "outage_added_ms_p99": max(one["added_ms_p99"] for one in faults.values()),
        "outage_recovery_s": max(one["recovery_s"] for one in faults.values()),
        "by_fault": faults,
    }


def _measured(driver: str, name: str, sizes: Sizes) -> Figures:
    if driver == REDIS:
        with redis_server() as server:
            return _through(server.url, lambda: REDIS_FAULTS[name](server), sizes.outage_s)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return _through(folder, lambda: SQLITE_FAULTS[name](Path(folder)), sizes.outage_s)


def _through(location: str, fault: Fault, outage_s: float) -> Figures:
    errors = LoggedErrors()
    with Watcher.running(location) as watcher, running_corpus(location, forest()) as corpus:
        load = Load(corpus.publish, watcher)
        load.run(2 * _BEFORE_S)
        before = load.take_spent_ms(_BEFORE_S)
        with fault():
            load.run(outage_s)
            during = load.take_spent_ms(outage_s)
        end_s = time.monotonic()
        load.run(AFTER_S)
        seen = watcher.end()
        publisher = corpus.figures().publisher
    return {
        "num_errors": errors.num_errors + seen.num_errors + load.num_errors,
        "added_ms_p99": at(during, 99) - at(before, 99),
        "recovery_s": recovery_s(load.published_s, seen.at_s, end_s),
        "num_outputs": len(load.published_s),
        "num_lost": len(load.published_s) - len(seen.at_s),
        "publisher": asdict(publisher),
        "learner": asdict(seen.learner),
    }


class Load:
    """Publishes marks at a steady rate, and lets another engine look for them."""

    def __init__(self, publish: Callable[[Any], None], watcher: Watcher) -> None:
        self._publish = publish
        self._watcher = watcher
        self._spent_ms: list[float] = []
        self.published_s: dict[int, float] = {}
        self.num_errors = 0

    def run(self, duration_s: float) -> None:
        """Publish for some time."""
        begin_s = time.monotonic()
        for due in range(int(duration_s * _PUBLISH_PER_S)):
            number = len(self.published_s)
            output = mark(number)
            self._watcher.look_for(range(number, number + 1))
            time.sleep(max(0.0, begin_s + due / _PUBLISH_PER_S - time.monotonic()))
            self.published_s[number] = time.monotonic()
            begin_ns = time.perf_counter_ns()
            try:
                self._publish(output)
            except Exception:  # what this part counts
                self.num_errors += 1
            self._spent_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)

    def take_spent_ms(self, last_s: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return what the calls of the last seconds took."""
        return np.array(self._spent_ms[-int(last_s * _PUBLISH_PER_S) :])


def recovery_s(published_s: Mapping[int, float], seen_s: Mapping[int, float], end_s: float) -> float:
    """Return the time after a fault from which on outputs arrived as before; ``AFTER_S`` if they never did.

    They do once most outputs of the following ``JUDGED_S`` draft elsewhere in time, the first one included.
    """
    late_after = [
        (at_s, seen_s.get(number, np.inf) - at_s > FRESH_S)
        for number, at_s in sorted(published_s.items())
        if at_s >= end_s
    ]
    for i, (at_s, _) in enumerate(late_after):
        judged = [is_late for _, is_late in late_after[i : i + int(JUDGED_S * _PUBLISH_PER_S)]]
        if not judged[0] and np.mean(judged) <= 1 - RECOVERED:
            return at_s - end_s
    return AFTER_S


# ---- faults ----


@contextmanager
def _killed(server: Any) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def _stalled(server: Any) -> Iterator[None]:
    server.stall()
    yield
    server.go_on()


@contextmanager
def _out_of_memory(server: Any) -> Iterator[None]:
    server.client.config_set("maxmemory-policy", "noeviction")
    server.client.config_set("maxmemory", "1")
    yield
    server.client.config_set("maxmemory", "0")


@contextmanager
def _flushed(server: Any) -> Iterator[None]:
    server.client.flushall()
    yield


@contextmanager
def _disk_full(folder: Path) -> Iterator[None]:
    """Let no file of this process grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield
        other.execute("rollback")


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    yield


REDIS_FAULTS: Mapping[str, Callable[[Any], AbstractContextManager[None]]] = {
    "killed": _killed,
    "stalled": _stalled,
    "out of memory": _out_of_memory,
    "flushed": _flushed,
}
SQLITE_FAULTS: Mapping[str, Callable[[Path], AbstractContextManager[None]]] = {
    "disk full": _disk_full,
    "locked": _locked,
    "removed": _removed,
}
