"""Other work on the machine is detected, and a disturbed measurement is repeated while time remains."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from benchmarks.gateway import quiet
from benchmarks.gateway.quiet import Quiet, Watch

SPIN = "import time\nwhile time.process_time() < 0.4: pass"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def test_what_our_own_processes_do_is_not_others_work() -> None:
    watch = Watch()
    with subprocess.Popen([sys.executable, "-c", f"{SPIN}\nprint(flush=True); input()"], **PIPES) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it has spun, and still runs
        own_s = quiet._own_cpu_s() - watch._own_s
        child.communicate("\n")
    assert own_s >= 0.2
    assert watch.others() >= 0


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of cores that others appear to use, one entry per measurement; 0 when it is empty."""
    cores: list[float] = []
    monkeypatch.setattr(Watch, "others", lambda self: cores.pop(0) if cores else 0.0)
    monkeypatch.setattr(quiet, "WINDOW_S", 0.001)
    return cores


def test_without_patience_it_is_done_once(busy: list[float]) -> None:
    busy[:] = [1.5]
    done: list[float] = []
    assert Quiet().measured(lambda: done.append(time.monotonic())) == (None, 1.5)
    assert len(done) == 1


def test_it_waits_and_does_it_again(busy: list[float]) -> None:
    busy[:] = [1.0, 1.0, 0.0, 0.9, 0.1, 0.05]  # twice busy, quiet, busy during the work, quiet again
    done: list[float] = []
    assert Quiet(60).measured(lambda: done.append(time.monotonic())) == (None, 0.05)
    assert len(done) == 2
    assert busy == []


def test_patience_ends(busy: list[float]) -> None:
    busy[:] = [1.0] * 100
    assert Quiet(0.01).measured(lambda: "done") == ("done", 1.0)
    assert busy
