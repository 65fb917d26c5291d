"""How many draft tokens are verified: drafts worth their time, and requests that ask for a draft."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from agentspec.draft import Draft
from agentspec.engine.pricing import Pace, Pricing, StageGain, Work

PERIOD = 17
CONTROLS_IN_80_STEPS = 5
MANY = 1000  # results


def draft(*probs: float) -> Draft:
    size = len(probs)
    return Draft(
        token_ids=np.zeros(size, np.int32),
        parents=np.arange(-1, size - 1, dtype=np.int32),
        probs=np.array(probs, np.float32),
        score=sum(probs),
    )


def priced(stair_s: float) -> Pricing:
    """Return the pricing of steps of 1 ms and 0.05 ms per draft token, each of which gives 2 tokens."""
    pricing = Pricing()
    for number in range(600):
        num_drafted = (0, 3, 7, 0, 1, 12, 5)[number % 7]
        seconds = 0.001 + (stair_s if num_drafted else 0) + 0.00005 * num_drafted
        pricing.timed(seconds, Work(1, num_drafted, 2, 0))
    return pricing


def plain(pricing: Pricing, seconds: float) -> Pricing:
    """Let steps without drafts take this long."""
    for _ in range(300):
        pricing.saving(seconds, 0.0, Work(1, 0, 1, 0), 0)
    assert pricing.plain_step_s(1) == pytest.approx(seconds, rel=0.05)
    return pricing


def test_before_any_step_all_drafts_are_worth_their_time() -> None:
    assert Pricing().are_worth([draft(0.3), draft()], 1)


def test_with_a_fixed_price_all_drafts_are_verified() -> None:
    pricing = Pricing(0.3)
    assert (pricing.price, pricing.min_prob) == (0.3, 0.3)
    assert pricing.are_worth([draft(0.01)], 1)


@pytest.mark.parametrize(
    ("stair_s", "made", "is_worth"),
    [
        (0.001, [(0.9,)], False),
        (0.001, [(0.9,), (0.8,)], True),  # they pay for the first row together
        (0.001, [(0.9, 0.8, 0.7)], True),
        (0.001, [(), ()], True),  # no drafts cost nothing
        (0.0, [(0.2,)], True),  # without a stair a token needs its price only
    ],
)
def test_drafts_have_to_be_worth_their_cost_together(
    stair_s: float, made: list[tuple[float, ...]], is_worth: bool
) -> None:
    assert priced(stair_s).are_worth([draft(*probs) for probs in made], len(made)) is is_worth


def test_a_token_saves_the_time_that_it_takes_without_drafts_if_that_is_known() -> None:
    token_s = priced(0.001)._cost.token_s
    assert not priced(0.001).are_worth([draft(0.7)], 1)  # an average token takes half as long
    assert plain(priced(0.001), 2 * token_s).are_worth([draft(0.7)], 1)
    assert not plain(priced(0.001), 0.5 * token_s).are_worth([draft(0.9, 0.8)], 1)


def test_promises_have_to_exceed_their_cost() -> None:
    pricing = priced(0.0)
    assert not pricing.are_worth([draft(1.1 * pricing.price)], 1)
    assert pricing.are_worth([draft(1.2 * pricing.price)], 1)


def test_promises_are_corrected_by_what_was_accepted() -> None:
    pricing = priced(0.001)
    for _ in range(2000):
        pricing.verified([(draft(0.5, 0.5), 2), (draft(), 0), (draft(0.5), 1)])
    assert pricing.truth == pytest.approx(2, rel=0.05)
    assert pricing.min_prob == pytest.approx(pricing.price / pricing.truth)
    assert pricing.are_worth([draft(0.9)], 1)
    for _ in range(4000):
        pricing.verified([(draft(0.5, 0.5), 0)])
    assert pricing.truth == 0.5
    assert not pricing.are_worth([draft(0.6, 0.6)], 1)


def test_drafts_that_never_promise_anything_are_no_division_by_zero() -> None:
    pricing, worthless = Pricing(), [(draft(0.0), 0)]
    for _ in range(200_000):  # until a float has no smaller value
        pricing.verified(worthless)
    assert pricing.truth == 0.5


def test_drafts_without_estimates_are_always_verified() -> None:
    pricing = priced(0.003)
    unjudged = replace(draft(1.0, 1.0), probs=np.full(2, np.nan, np.float32))
    pricing.verified([(unjudged, 0), (draft(), 0)] * 1000)  # and they change no promise
    assert pricing.truth == 1
    assert pricing.are_worth([unjudged, draft()], 1)
    assert not pricing.are_worth([draft(0.9)], 1)


def test_refused_drafts_are_tried_now_and_then_at_a_bounded_cost() -> None:
    pricing = priced(0.001)
    tried = sum(pricing.are_worth([draft(0.5)], 1) for _ in range(10_000))
    loss = 1.15 * (pricing._cost.stair + pricing.price) - 0.5
    assert 0 < tried * loss <= 0.004 * 10_000


def test_a_dear_draft_is_tried_too() -> None:
    pricing = priced(0.001)
    many = [draft(*[0.01] * 30)] * 8  # they cost more than the trials of any other drafts
    assert any(pricing.are_worth(many, 8) for _ in range(20_000))


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
