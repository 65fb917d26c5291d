"""When a request asks for a draft, and when its stage's drafts are not worth the time of asking."""

from __future__ import annotations

import pytest

from agentspec.engine.lulls import Lull, Lulls
from agentspec.stages import StageKey

OPEN = StageKey("tenant", ("open",))
SQL = StageKey("tenant", ("sql",))


def asked(lull: Lull, num_steps: int, num_accepted: int = 0, cost: float = 0.1) -> int:
    """Take some steps; return in how many a draft was asked for, each with this result."""
    num_asked = 0
    for _ in range(num_steps):
        if lull.asks():
            num_asked += 1
            lull.judge(num_accepted, cost)
    return num_asked


def in_a_lull(lulls: Lulls) -> Lull:
    lull = lulls.begin(OPEN)
    asked(lull, 2_000)
    assert lull.stage.tokens < 0
    return lull


def test_drafts_that_gain_are_asked_for_in_every_step() -> None:
    assert asked(Lulls().begin(SQL), 5_000, num_accepted=1, cost=0.9) == 5_000


def test_a_new_stage_is_given_some_hundred_steps() -> None:
    assert asked(Lulls().begin(OPEN), 300) == 300


def test_in_a_lull_one_step_in_sixteen_asks() -> None:
    assert asked(in_a_lull(Lulls()), 160) == 10


def test_an_accepted_token_makes_the_next_step_ask() -> None:
    lull = in_a_lull(Lulls())
    while not lull.asks():
        pass
    lull.judge(1, 1.1)
    assert lull.stage.tokens < 0
    assert lull.asks()
    lull.judge(0, 0.1)
    assert not lull.asks()


def test_a_lull_ends_when_drafts_gain_again() -> None:
    lull = in_a_lull(Lulls())
    assert asked(lull, 200, num_accepted=3) > 150
    assert asked(lull, 100, num_accepted=3) == 100


def test_a_result_stands_for_the_steps_that_were_skipped_before_it() -> None:
    seldom, always = in_a_lull(Lulls()), in_a_lull(Lulls())
    always.stage.tokens = seldom.stage.tokens = before = -0.01
    while not seldom.asks():
        pass
    seldom.judge(2, 0.1)
    always.has_gained = True
    assert always.asks()
    always.num_skipped = 0
    always.judge(2, 0.1)
    assert seldom.stage.tokens - before == pytest.approx(16 * (always.stage.tokens - before))


def test_requests_of_a_stage_share_its_lull_and_begin_with_a_draft() -> None:
    lulls = Lulls()
    in_a_lull(lulls)
    other = lulls.begin(OPEN)
    assert other.asks()
    other.judge(0, 0.1)
    assert not other.asks()
    assert asked(lulls.begin(SQL), 100) == 100
