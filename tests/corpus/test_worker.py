from __future__ import annotations

import threading

from agentspec.corpus.threads import Worker

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
