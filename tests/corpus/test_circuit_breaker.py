from __future__ import annotations

import logging

from agentspec.corpus.threads import CircuitBreaker
from agentspec.errors import CorpusError
from tests.corpus.support.replica import Clock


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
