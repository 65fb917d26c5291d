"""Fixtures shared by all tests, and options for their order, thread switching and memory.

``TEST_SEED`` shuffles the files, and the tests of each file, by this number.
``TEST_SWITCH_S`` is the thread switch interval in seconds (``sys.setswitchinterval``).
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MIB = 2**20
# A process that ran every file keeps about 1,100 MiB (libraries, code); a live engine adds up to 600.
MOST_RESIDENT_MIB = 2048
SEED_VARIABLE, SWITCH_VARIABLE = "TEST_SEED", "TEST_SWITCH_S"
HTTPX_TIMEOUT_S = 60.0
PEAKS: pytest.StashKey[dict[str, int]] = pytest.StashKey()
IS_OVER: pytest.StashKey[bool] = pytest.StashKey()

# oneDNN keeps a kernel per shape, 1,024 by default: 150 MiB here. It reads this when torch is loaded.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

with suppress(ImportError):  # the environments of other packages lack it
    from hypothesis import HealthCheck, settings

    # an example's duration depends on the machine's load
    settings.register_profile("agentspec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("agentspec")

with suppress(ImportError):
    import httpx

    # the default time-out of five seconds is too short on a busy machine
    default: Any = inspect.signature(httpx.get).parameters["timeout"].default
    default.connect = default.read = default.write = default.pool = HTTPX_TIMEOUT_S


def resident_mib() -> int:
    """Return this process's resident memory in MiB, or 0 if psutil is not installed."""
    try:
        import psutil
    except ImportError:
        return 0
    return int(psutil.Process().memory_info().rss // MIB)


def give_back_free_memory() -> None:
    """Make glibc return the pages of free blocks to the system, so that they do not count as a leak."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def peak_mib() -> int:
    """Return this process's peak memory in MiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (MIB if sys.platform == "darwin" else 1024)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PEAKS] = {}
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:  # a background job: subprocesses inherit it
            signal.signal(number, signal.SIG_DFL)
    if interval_s := os.environ.get(SWITCH_VARIABLE):
        sys.setswitchinterval(float(interval_s))


def pytest_report_header() -> list[str]:
    named = (SEED_VARIABLE, SWITCH_VARIABLE)
    return [f"{name}={os.environ[name]}" for name in named if os.environ.get(name)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests in each, if there is a seed."""
    if not (seed := os.environ.get(SEED_VARIABLE)):
        return
    drawn = random.Random(int(seed))
    places = {path: drawn.random() for path in dict.fromkeys(item.path for item in items)}
    keys = {item: (places[item.path], drawn.random()) for item in items}
    items.sort(key=keys.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Fail a test that leaves its process with too much memory."""
    result = yield
    resident = resident_mib()
    is_last_of_file = nextitem is None or nextitem.path != item.path
    if resident > MOST_RESIDENT_MIB or (is_last_of_file and resident > MOST_RESIDENT_MIB // 2):
        gc.collect()  # models have reference cycles
        give_back_free_memory()
        resident = resident_mib()
    if resident > MOST_RESIDENT_MIB and not item.config.stash.get(IS_OVER, False):
        item.config.stash[IS_OVER] = True  # report only one test, not all that follow
        pytest.fail(f"after {item.nodeid} this process has {resident} MiB, more than {MOST_RESIDENT_MIB}")
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's peak memory to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["peak_mib"] = peak_mib()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[PEAKS][node.gateway.id] = getattr(node, "workeroutput", {}).get("peak_mib", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    peaks = config.stash[PEAKS] or {"this process": peak_mib()}
    shown = ", ".join(f"{name} {mib} MiB" for name, mib in sorted(peaks.items()))
    terminalreporter.write_line(f"most memory: {shown}")


@pytest.fixture
def free_port() -> Iterator[int]:
    """Yield a port reserved for this test, on which no process listens yet."""
    from tests.support.ports import reserved_port

    with reserved_port() as port:
        yield port


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a family's random checkpoint once. The directory is read-only."""
    from tests.support.checkpoints import make_checkpoint

    return cache(lambda family: make_checkpoint(tmp_path_factory.mktemp(family), family))


@pytest.fixture(scope="session")
def llama_checkpoint(checkpoint: Callable[[str], Path]) -> Path:
    """Return the directory of a small random Llama with tokenizer and chat template. Read-only."""
    return checkpoint("llama")
