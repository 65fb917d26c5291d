"""A loop that survives failures, a share of a core, pauses while a store fails."""

from __future__ import annotations

import logging
import threading

from agentspec.corpus.threads import CircuitBreaker, CpuShare, Worker
from agentspec.errors import CorpusError
from tests.corpus.support.replica import Clock

TIMEOUT_S = 60.0


def test_a_step_that_fails_is_logged_and_repeated(caplog):
    done: list[str] = []
    is_done = threading.Event()

    def step() -> None:
        done.append("step")
        if len(done) == 2:
            raise ValueError("no")
        if len(done) == 4:
            is_done.set()
            worker.closing.wait(TIMEOUT_S)

    worker = Worker(
        "tests", step, begin=lambda: done.append("begin"), end=lambda: done.append("end"), retry_s=0.0
    )
    worker.start()
    assert is_done.wait(TIMEOUT_S)
    assert worker.is_alive
    worker.close(TIMEOUT_S)
    assert not worker.is_alive
    assert done == ["begin", "step", "step", "step", "end"]
    assert "tests: a step failed" in caplog.text


def test_a_worker_that_never_started_is_closed():
    worker = Worker("tests", lambda: None)
    worker.close(TIMEOUT_S)
    assert not worker.is_alive


class Machine:
    """A thread that works and waits on clocks of its own."""

    def __init__(self, share: float) -> None:
        self.clock, self.cpu = Clock(), Clock(5.0)
        self.share = CpuShare(share, self.wait, self.clock, self.cpu)
        self.waited_s = 0.0

    def work(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.cpu.now_s += seconds

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.waited_s += seconds


def test_a_busy_thread_gets_its_share():
    machine = Machine(0.25)
    machine.share.begin()
    begin_s = machine.clock.now_s
    for _ in range(100):
        machine.work(0.0007)
        machine.share.pause()
    used_s = 100 * 0.0007
    assert abs((machine.clock.now_s - begin_s) - used_s / 0.25) < 0.01
    assert abs(machine.share.cpu_s - used_s) < 0.001


def test_idle_time_is_not_saved_up():
    machine = Machine(0.5)
    machine.share.begin()
    machine.clock.now_s += 100.0
    machine.share.pause()
    machine.work(1.0)
    machine.share.pause()
    assert machine.waited_s == 1.0


def test_it_does_not_wait_while_it_is_free():
    machine = Machine(0.1)
    machine.share.begin()
    machine.share.free(2.0)
    machine.work(1.0)
    machine.share.pause()
    assert machine.waited_s == 0
    machine.work(1.0)
    machine.share.pause()
    assert machine.waited_s > 8


def test_pauses_grow_up_to_a_limit_and_end_with_a_success():
    clock = Clock()
    breaker = CircuitBreaker("it", clock, spread=lambda: 1.0)
    assert not breaker.is_open
    pauses = []
    for _ in range(9):
        breaker.fail(CorpusError("away"))
        pauses.append(breaker.wait_s)
        clock.now_s += breaker.wait_s
        assert breaker.is_open
        assert breaker.wait_s == 0
    assert pauses == [0.5, 1, 2, 4, 8, 8, 8, 8, 8]
    breaker.succeed()
    assert not breaker.is_open
    breaker.fail(CorpusError("away"))
    assert breaker.wait_s == 0.5
    assert breaker.num_failures == 10


def test_one_line_is_logged_per_change(caplog):
    breaker = CircuitBreaker("publishing", Clock())
    with caplog.at_level(logging.WARNING):
        breaker.succeed()
        for _ in range(3):
            breaker.fail(CorpusError("the store is away"))
        breaker.succeed()
        breaker.succeed()
    assert [record.getMessage() for record in caplog.records] == [
        "publishing pauses: the store is away",
        "publishing continues",
    ]
