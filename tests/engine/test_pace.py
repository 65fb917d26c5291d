"""When a request asks for a draft, and when its stage's drafts are not worth the time of asking."""

from __future__ import annotations

from itertools import count

import pytest

from agentspec.engine.pace import Pace, StageGain

PERIOD = 17
CONTROLS_IN_80_STEPS = 5
MANY = 1000  # results


def asked(pace: Pace, num_steps: int, num_accepted: int = 0, cost: float = 0.1) -> int:
    """Take some steps; return in how many a draft was asked for, each with this result."""
    num_asked = 0
    for step in range(1, num_steps + 1):
        if pace.asks(step):
            num_asked += 1
            pace.judge(num_accepted, cost)
    return num_asked


def in_a_lull() -> Pace:
    pace = Pace(StageGain())
    asked(pace, 2_000)
    assert pace.gain.tokens < 0
    return pace


def test_drafts_that_gain_are_asked_for_in_every_step() -> None:
    assert asked(Pace(StageGain(1.0)), 5_000, num_accepted=1, cost=0.1) == 5_000
    num_controls = 5 + 5_000 // 128
    assert asked(Pace(StageGain()), 5_000, num_accepted=1, cost=0.9) == 5_000 - num_controls


def test_a_new_stage_is_given_some_tens_of_steps() -> None:
    assert asked(Pace(StageGain(), has_gained=False), 80) == 80 - CONTROLS_IN_80_STEPS
    assert asked(Pace(StageGain(), has_gained=False), 500) < 150


def test_a_small_gain_is_checked_by_steps_without_drafts() -> None:
    def skipped(gain: float) -> list[int]:
        pace = Pace(StageGain(gain), has_gained=False)
        return [step for step in range(1, 400) if not pace.asks(step)]

    assert skipped(0.1) == [4, 8, 16, 32, 64, 128, 256, 384]
    assert skipped(0.6) == []
    assert skipped(-0.01) == [step for step in range(1, 400) if step % PERIOD]


def test_a_result_whose_cost_is_unknown_tells_whether_the_next_step_asks() -> None:
    pace = in_a_lull()
    before = pace.gain.tokens
    for num_accepted in (1, 0):
        pace.note(num_accepted)
        assert pace.asks(1) is bool(num_accepted)
    assert pace.gain.tokens == before


def test_in_a_lull_all_requests_ask_in_the_same_step_of_seventeen() -> None:
    gain = in_a_lull().gain
    paces = [Pace(gain, has_gained=False) for _ in range(3)]
    for step in range(1, 100):
        assert {pace.asks(step) for pace in paces} == {step % PERIOD == 0}


def test_an_accepted_token_makes_the_next_step_ask() -> None:
    pace = in_a_lull()
    pace.judge(1, 1.1)
    assert pace.gain.tokens < 0
    assert pace.asks(1)
    pace.judge(0, 0.1)
    assert not pace.asks(1)


def test_a_request_begins_with_a_draft() -> None:
    pace = Pace(in_a_lull().gain)
    assert pace.asks(1)
    pace.judge(0, 0.1)
    assert not pace.asks(2)


def test_a_lull_ends_when_drafts_gain_again() -> None:
    pace = in_a_lull()
    assert asked(pace, 200, num_accepted=3) > 150
    assert pace.gain.tokens > 0
    pace.judge(0, 0.1)
    assert pace.asks(1)


@pytest.mark.parametrize("num_accepted", [0, 2])
def test_a_result_stands_for_the_steps_that_were_skipped_before_it(num_accepted: int) -> None:
    seldom, always = Pace(StageGain(-0.01, MANY), has_gained=False), Pace(StageGain(-0.01, MANY))
    for step in count(1):
        if seldom.asks(step):
            break
    assert step == PERIOD
    for pace in (seldom, always):
        pace.judge(num_accepted, 0.1)
    assert seldom.gain.tokens + 0.01 == pytest.approx(PERIOD * (always.gain.tokens + 0.01))


def test_results_that_are_missing_do_not_count_for_more_than_one_period() -> None:
    pace = Pace(StageGain(-0.01, MANY), num_skipped=1000)
    pace.judge(1, 0.0)
    assert pace.gain.tokens == pytest.approx(-0.01 + PERIOD / 256 * 1.01)


@pytest.mark.parametrize("num_requests", [4, 16, 64])
def test_a_few_lucky_results_among_many_requests_do_not_end_a_lull(num_requests: int) -> None:
    gain = StageGain(-0.05, MANY)
    paces = [Pace(gain, has_gained=False) for _ in range(num_requests)]
    num_asked = 0
    for step in range(PERIOD + 1):
        asking = [pace for pace in paces if pace.asks(step)]
        num_asked += len(asking)
        for pace in asking:
            pace.judge(int(step == 0 and pace is paces[0]), 0.1, len(asking))
    assert num_asked == 2 * num_requests + 1  # those of two steps, and the lucky one again
    assert gain.tokens < 0 if num_requests > 4 else gain.tokens < 0.05


def test_results_of_one_step_stand_for_its_skipped_steps_together() -> None:
    gain = StageGain(-0.01, MANY)
    for pace in [Pace(gain, num_skipped=PERIOD - 1) for _ in range(PERIOD)]:
        pace.judge(1, 0.0, PERIOD)
    assert gain.tokens == pytest.approx(1 - 1.01 * (1 - 1 / 256) ** PERIOD)
