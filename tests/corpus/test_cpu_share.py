from __future__ import annotations

from agentspec.corpus.threads import CpuShare
from tests.corpus.support.replica import Clock


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
