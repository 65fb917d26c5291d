"""The estimated duration of a step without drafts, tested on engines with known step costs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.steps import PlainStep, StepCost, StepSaving

BASE_S, REQUEST_S, DRAFT_S, PROMPT_S = 0.002, 0.001, 0.0001, 0.00005


def test_without_estimates_only_steps_without_drafts_tell() -> None:
    """Steps without drafts of vLLM take half of what those with drafts take without the cost of these."""
    plain = PlainStep(estimates=False)
    for _ in range(50):
        assert plain.observe(0.02, 0.0, 8, 24, 0, 0.004) is None
    assert plain.seconds(8) is None
    for _ in range(4):
        plain.observe(0.008, 0.0, 8, 0, 0, None)
    saving = plain.observe(0.02, 0.0, 8, 24, 0, 0.004)
    assert saving is not None
    assert saving.plain_s(4) == pytest.approx(4 * 0.008)


class Engine:
    """An engine with known costs, all multiplied by ``factor``.

    A step costs 2 ms, plus 1 ms a request, 0.1 ms a draft token and 0.05 ms a prompt token.
    """

    def __init__(self) -> None:
        self.cost = StepCost()
        self.plain = PlainStep()
        self.factor = 1.0
        self.estimated_s = self.true_s = self.known_s = self.total_s = 0.0

    def plain_s(self, num_requests: int) -> float:
        return self.factor * (BASE_S + REQUEST_S * num_requests)

    def step(
        self, num_requests: int, num_drafted: int, num_tokens: int, num_prompt: int = 0, pause_s: float = 0.0
    ) -> StepSaving | None:
        """Take one step. Every request gains the same share of ``num_tokens``."""
        plain_s = self.plain_s(num_requests)
        extra_s = self.factor * DRAFT_S * num_drafted
        seconds = plain_s + extra_s + self.factor * PROMPT_S * num_prompt + pause_s
        saving = self.plain.observe(
            seconds, 0.0, num_requests, num_drafted, num_prompt, self.cost.drafts_s(num_drafted)
        )
        self.cost.observe(seconds, num_requests, num_drafted, num_tokens, num_prompt)
        self.total_s += num_requests * seconds
        each = num_tokens / num_requests
        if saving is not None:
            self.known_s += num_requests * saving.measured_s
            self.estimated_s += num_requests * (
                saving.fixed_s + each * saving.per_token_s - saving.measured_s
            )
            self.true_s += num_requests * ((each - 1) * plain_s - extra_s)
        return saving

    def drafts(self, num_requests: int, number: int, seed: int = 0) -> Iterator[int]:
        rng = random.Random(seed)
        for _ in range(number):
            yield sum(rng.randint(1, 16) for _ in range(num_requests))


def test_one_request_with_some_steps_without_drafts() -> None:
    engine = Engine()
    for number, num_drafted in enumerate(engine.drafts(1, 500)):
        engine.step(1, 0 if number % 10 == 0 else num_drafted, 1 if number % 10 == 0 else 5)
    assert engine.estimated_s == pytest.approx(engine.true_s, rel=0.01)
    assert engine.known_s > 0.9 * engine.total_s


def test_one_request_that_is_always_drafted_for_says_nothing() -> None:
    engine = Engine()
    assert all(engine.step(1, num_drafted, 5) is None for num_drafted in engine.drafts(1, 500))


def test_many_requests_that_are_always_drafted_for() -> None:
    """Every step has drafts: the cost of a draft token gives the duration without them."""
    engine = Engine()
    for num_drafted in engine.drafts(8, 600):
        engine.step(8, num_drafted, 32)
    assert engine.estimated_s == pytest.approx(engine.true_s, rel=0.05)
    assert engine.known_s > 0.9 * engine.total_s


def test_many_requests_whose_drafts_never_vary_say_nothing() -> None:
    engine = Engine()
    assert all(engine.step(8, 128, 32) is None for _ in range(300))


def test_drafts_that_cost_more_than_they_save_have_lost_time() -> None:
    engine = Engine()
    for number, num_drafted in enumerate(engine.drafts(1, 500)):
        engine.step(1, 0 if number % 4 == 0 else 3 * num_drafted, 1)
    assert engine.estimated_s < -0.5
    assert engine.estimated_s == pytest.approx(engine.true_s, rel=0.01)


def test_without_drafts_nothing_is_saved_and_only_guessing_is_lost() -> None:
    plain, rng = PlainStep(), random.Random(1)
    for _ in range(100):
        seconds = rng.uniform(0.001, 0.1)
        saving = plain.observe(seconds, 0.0005, rng.randint(1, 9), 0, 0, 0.0)
        assert saving is not None
        assert saving.plain_s(1) - saving.measured_s == pytest.approx(-0.0005)


def test_prompts_beside_decoding_are_paid_once() -> None:
    engine, rng = Engine(), random.Random(2)
    for number, num_drafted in enumerate(engine.drafts(4, 1000)):
        is_plain = number % 8 == 0
        engine.step(4, 0 if is_plain else num_drafted, 4 if is_plain else 16, rng.choice([0, 0, 64, 256]))
    assert engine.estimated_s == pytest.approx(engine.true_s, rel=0.05)


def test_a_number_of_requests_between_two_known_ones() -> None:
    engine = Engine()
    for num_requests in (1, 7):
        for _ in range(10):
            engine.step(num_requests, 0, num_requests)
    assert engine.plain.seconds(4) == pytest.approx(engine.plain_s(4))
    assert engine.plain.seconds(40) is None
    assert PlainStep().seconds(1) is None


@pytest.mark.parametrize("num_requests", [1, 6])
def test_one_pause_of_three_seconds_is_no_time_saved_or_lost(num_requests: int) -> None:
    calm, paused = Engine(), Engine()
    for engine, pause_s in ((calm, 0.0), (paused, 3.0)):
        for number, num_drafted in enumerate(engine.drafts(num_requests, 400)):
            is_plain = number % 10 == 0
            engine.step(
                num_requests,
                0 if is_plain else num_drafted,
                num_requests if is_plain else 4 * num_requests,
                pause_s=pause_s if number in (200, 305) else 0.0,
            )
    assert paused.estimated_s == pytest.approx(calm.estimated_s, rel=0.25)


def test_a_machine_that_gets_slower_and_faster_again() -> None:
    engine = Engine()
    for number, num_drafted in enumerate(engine.drafts(1, 6000)):
        engine.factor = 5.0 if 2000 <= number < 4000 else 1.0
        is_plain = number % 8 == 0
        engine.step(1, 0 if is_plain else num_drafted, 1 if is_plain else 5)
    assert engine.estimated_s == pytest.approx(engine.true_s, rel=0.15)


def test_what_was_not_seen_for_long_is_not_known_any_more() -> None:
    engine = Engine()
    for _ in range(100):
        engine.step(1, 0, 1)
    assert engine.step(1, 8, 5) is not None
    for num_drafted in engine.drafts(1, 3000):
        engine.step(1, num_drafted, 5)
    assert engine.step(1, 8, 5) is None
    for _ in range(8):
        engine.factor = 3.0
        engine.step(1, 0, 1)
    assert engine.plain.seconds(1) == pytest.approx(engine.plain_s(1))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
            st.integers(0, 1 << 12),
            st.integers(0, 1 << 16),
            st.integers(0, 1 << 16),
            st.none() | st.floats(0, 10),
        ),
        max_size=60,
    )
)
def test_whatever_happens_both_times_can_only_grow(
    steps: list[tuple[float, float, int, int, int, float | None]],
) -> None:
    plain = PlainStep()
    for step in steps:
        saving = plain.observe(*step)
        if saving is not None:
            assert math.isfinite(saving.measured_s)
            assert saving.measured_s > 0
            assert math.isfinite(saving.plain_s(16))
            assert saving.plain_s(1) >= 0
