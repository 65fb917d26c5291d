from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from agentspec.vllm_plugin.commands import Snapshot


class Figures:
    """Figures that take a second of a fake clock, and a thread that runs when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.num_made = 0
        self.failure: Exception | None = None
        self.waiting: list[tuple[Future[None], Callable[[], None]]] = []
        self.snapshot = Snapshot(self.make, self.submit, lambda: self.now_s)

    def make(self) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        self.num_made += 1
        self.now_s += 1.0
        return {"made": self.num_made, "stages": []}

    def submit(self, call: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self.waiting.append((future, call))
        return future

    def run_thread(self) -> None:
        future, call = self.waiting.pop()
        try:
            call()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def read(self, *, is_quick: bool = False) -> Any:
        return json.loads(self.snapshot.read(is_quick=is_quick))


def test_figures_that_are_quickly_made_are_new_at_every_reading() -> None:
    figures = Figures()
    for number in (1, 2, 3):
        figures.now_s += 60.0
        assert figures.read(is_quick=True) == {"age_s": 1.0, "made": number, "stages": []}
    assert not figures.waiting


def test_figures_that_take_long_are_made_by_a_thread_for_the_next_reading() -> None:
    figures = Figures()
    assert figures.read()["made"] == 1  # there are no last ones
    figures.now_s += 15.0
    for _ in range(2):  # the second does not start another thread
        assert figures.read() == {"age_s": 16.0, "made": 1, "stages": []}
    figures.run_thread()
    figures.now_s += 15.0
    assert figures.read() == {"age_s": 16.0, "made": 2, "stages": []}  # and a thread makes the next ones
    figures.run_thread()
    assert figures.read()["made"] == 3


def test_a_failure_of_the_thread_is_raised_by_the_next_reading_alone() -> None:
    figures = Figures()
    figures.read()
    figures.read()
    figures.failure = ValueError("no figures")
    figures.run_thread()
    figures.failure = None
    with pytest.raises(ValueError, match="no figures"):
        figures.read()
    assert figures.read()["made"] == 1
    figures.run_thread()
    assert figures.read()["made"] == 2
