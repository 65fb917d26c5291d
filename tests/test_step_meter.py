"""StepMeter: which part of the clock belongs to which step, and numbers that can not be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentspec.steps import FIRST_PRICE, PlainStep, StepCost, StepMeter, StepSaving

STEP_S, DRAFTING_S = 0.01, 0.002


def run_plain_steps(meter: StepMeter, now_s: float, number: int) -> tuple[float, StepSaving]:
    """Run steps of one request without drafts. Return the time of the last one's end, and its saving."""
    for _ in range(number):
        begin_s = now_s + STEP_S
        now_s = begin_s + DRAFTING_S
        saving = meter.observe(begin_s, now_s, 1, 1, 0, 1)
    assert saving is not None
    return now_s, saving


def test_a_step_is_from_the_end_of_one_drafting_to_the_next_and_its_own_drafting() -> None:
    meter = StepMeter(None)
    meter.idle(100.0)
    now_s, saving = run_plain_steps(meter, 100.0, 8)
    assert saving.measured_s == pytest.approx(STEP_S + DRAFTING_S)
    assert saving.plain_s(1) == pytest.approx(STEP_S)
    drafted = meter.observe(now_s + 3 * STEP_S, now_s + 3 * STEP_S, 9, 1, 8, 5)
    assert drafted is not None
    assert drafted.measured_s == pytest.approx(3 * STEP_S + DRAFTING_S)
    assert drafted.plain_s(5) == pytest.approx(5 * STEP_S)
    assert meter.num_slots == 8


def test_the_time_without_requests_belongs_to_no_step() -> None:
    meter = StepMeter(None)
    meter.idle(100.0)
    run_plain_steps(meter, 100.0, 4)
    meter.idle(500.0)
    _, saving = run_plain_steps(meter, 500.0, 1)
    assert saving.measured_s == pytest.approx(STEP_S)


def test_prompts_are_what_is_neither_decoded_nor_verified() -> None:
    meter, cost, plain = StepMeter(None), StepCost(), PlainStep(estimates=False)
    meter.idle(100.0)
    now_s = 100.0
    for number in range(200):
        num_slots, num_prompt, seconds = number % 7, 40 * (number % 3), 0.01 + 0.001 * (number % 7)
        now_s += seconds
        saving = meter.observe(now_s, now_s, 2 + num_slots + num_prompt, 2, num_slots, 4)
        expected = plain.observe(seconds, 0.0, 2, num_slots, num_prompt, cost.drafts_s(num_slots))
        cost.observe(seconds, 2, num_slots, 4, num_prompt)
        assert (saving is None) == (expected is None)
        if saving is not None and expected is not None:
            assert saving.plain_s(3) == pytest.approx(expected.plain_s(3))
    assert 0 < cost.price < 1
    assert meter.price == pytest.approx(cost.price)


def test_the_operators_price_is_the_price() -> None:
    fixed, learned = StepMeter(0.7), StepMeter(None)
    assert (fixed.price, learned.price) == (0.7, FIRST_PRICE)
    for meter in (fixed, learned):
        meter.idle(100.0)
        run_plain_steps(meter, 100.0, 8)
    assert fixed.price == 0.7


@pytest.mark.parametrize("number", [-1, 1 << 32, 1 << 70, 1.5, None, "1"])
@pytest.mark.parametrize("place", range(2, 6))
def test_a_number_that_can_not_be_changes_nothing(place: int, number: Any) -> None:
    meter = StepMeter(None)
    step: list[Any] = [100.01, 100.012, 9, 1, 8, 5]
    step[place] = number
    meter.idle(100.0)
    with pytest.raises(TypeError, match="incompatible"):
        meter.observe(*step)
    assert meter.num_slots == 0
    assert run_plain_steps(meter, 100.0, 1)[1].measured_s == pytest.approx(STEP_S)


@pytest.mark.parametrize("time_s", [math.nan, math.inf, -math.inf, -1e300])
def test_a_time_that_can_not_be_costs_one_step(time_s: float) -> None:
    meter = StepMeter(None)
    meter.idle(100.0)
    assert meter.observe(time_s, time_s, 1, 1, 0, 1) is None
    assert meter.price == FIRST_PRICE
    meter.idle(100.0)
    assert run_plain_steps(meter, 100.0, 1)[1].measured_s == pytest.approx(STEP_S)
