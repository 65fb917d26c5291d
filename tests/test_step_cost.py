"""The price of a draft token: examples computed by hand, and robustness."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.steps import COST_WINDOW as WINDOW
from agentspec.steps import FIRST_PRICE, StepCost

Seconds = Callable[[int], float]


def serve(cost: StepCost, rows: Iterable[int], seconds: Seconds, tokens: int = 4) -> float:
    """Return the price after steps with the given rows, which each gave ``tokens`` tokens."""
    for num_rows in rows:
        cost.observe(seconds(num_rows), 1, num_rows - 1, tokens)
    return cost.price


def around(mean: int, spread: int, number: int = 1000, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [mean + rng.randint(-spread, spread) for _ in range(number)]


def test_before_any_step_there_is_a_first_price() -> None:
    assert StepCost().price == FIRST_PRICE


def test_one_step_does_not_tell_what_a_row_costs() -> None:
    assert serve(StepCost(), [5], lambda rows: 0.002) == pytest.approx(FIRST_PRICE)


def test_a_linear_cost() -> None:
    # 2 ms and 0.1 ms a row; steps of 10 rows take 3 ms and give 4 tokens: 1,333 tokens/s * 0.1 ms = 0.133
    price = serve(StepCost(), around(10, 5), lambda rows: 0.002 + 0.0001 * rows)
    assert price == pytest.approx(4 / 0.003 * 0.0001, rel=0.05)


def test_rows_that_cost_nothing_and_rows_that_cost_everything() -> None:
    assert serve(StepCost(), around(10, 5), lambda rows: 0.01) == pytest.approx(0, abs=0.02)
    # plain decoding of 10 requests at 1 ms a row: saving a row is worth as much as a token
    price = serve(StepCost(), around(10, 5), lambda rows: 0.001 * rows, tokens=10)
    assert price == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_the_stair_of_many_requests_is_known_after_few_steps(seed: int) -> None:
    """The 17th row takes 3 ms: the time of five of the 20 tokens of a step, which no prior may forbid."""
    rng, cost = random.Random(seed), StepCost(has_stair=True)
    for step in range(100):
        num_drafted = rng.randint(4, 20) if step % 4 else 0
        seconds = 0.008 + (0.003 + 0.0001 * num_drafted if num_drafted else 0.0)
        cost.observe(seconds * rng.lognormvariate(0, 0.03), 16, num_drafted, 20)
    assert cost.stair * cost.token_s == pytest.approx(0.003, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_a_high_cost_is_known_after_few_steps(seed: int) -> None:
    """16 requests draft a token each: 1 ms a row and 5 % of noise, 20 tokens a step. The price is 0.63."""
    rng = random.Random(seed)

    def seconds(rows: int) -> float:
        return 0.001 * rows * rng.lognormvariate(0, 0.05)

    cost = StepCost()
    assert serve(cost, around(32, 12, 24, seed), seconds, tokens=20) == pytest.approx(0.63, abs=0.15)


def price_after(slow: dict[int, float], seed: int) -> float:
    """Return the price after 100 steps, some of which took longer by a factor. Its true value is 0.375.

    4 requests, 1 ms and 0.1 ms a row. Drafts as long as the price allows. Half of them are accepted. 10 draft
    tokens a step: 9 tokens in 2.4 ms.
    """
    cost, rng = StepCost(has_stair=True), random.Random(seed)
    for number in range(100):
        num_drafted = sum(rng.randint(0, round(8 * (1 - cost.price))) for _ in range(4))
        seconds = 0.001 + 0.0001 * (4 + num_drafted)
        cost.observe(
            seconds * rng.lognormvariate(0, 0.05) * slow.get(number, 1), 4, num_drafted, 4 + num_drafted // 2
        )
    return cost.price


@pytest.mark.parametrize("factor", [3, 50, 1000])
@pytest.mark.parametrize("number", range(10))
def test_a_slow_step_at_the_start_stops_no_drafts(number: int, factor: float) -> None:
    assert price_after({number: factor}, seed=number) == pytest.approx(0.375, abs=0.2)


@pytest.mark.parametrize("factors", [(1000, 1000), (1000, 300), (50, 50), (20, 10)])
@pytest.mark.parametrize("number", range(8))
def test_nor_do_two_of_them(number: int, factors: tuple[float, float]) -> None:
    slow = {number: factors[0], number + 1: factors[1]}
    assert price_after(slow, seed=number) == pytest.approx(0.375, abs=0.2)


def test_flat_then_linear_is_judged_where_the_server_is() -> None:
    def gpu(rows: int) -> float:
        return 0.01 + 0.0001 * max(0, rows - 100)

    cost = StepCost()
    assert serve(cost, around(50, 30), gpu, tokens=20) < 0.02
    # 300 rows take 30 ms and give 120 tokens: 4 tokens a ms * 0.1 ms
    assert serve(cost, around(300, 50), gpu, tokens=120) == pytest.approx(0.4, rel=0.1)
    assert serve(cost, around(50, 30), gpu, tokens=20) < 0.02


def test_a_load_that_comes_within_a_second() -> None:
    def cpu(rows: int) -> float:
        return 0.002 + 0.0001 * rows

    cost = StepCost()
    alone = serve(cost, around(8, 5), cpu, tokens=4)
    assert alone == pytest.approx(4 / 0.0028 * 0.0001, rel=0.05)
    loaded = serve(cost, around(64, 20, 2 * WINDOW), cpu, tokens=40)
    assert loaded == pytest.approx(40 / 0.0084 * 0.0001, rel=0.15)


def test_prompts_beside_decoding_are_no_cost_of_drafts() -> None:
    """2 ms, 0.1 ms a row, 0.05 ms a prompt row: the price is the same as without prompts."""
    cost, rng = StepCost(), random.Random(3)
    for rows in around(10, 5):
        prompt_rows = rng.choice([0, 0, 40, 256])
        cost.observe(0.002 + 0.0001 * rows + 0.00005 * prompt_rows, 1, rows - 1, 4, prompt_rows)
    assert cost.price == pytest.approx(4 / 0.003 * 0.0001, rel=0.1)


def test_the_noise_of_long_prompts_is_hardly_a_cost_of_drafts() -> None:
    """2 ms, 0.1 ms a row, 0.1 ms a prompt row, 10 % of noise: steps with prompts of 1,000 rows say little.

    Where they count as much as the others, the price is off by 0.08 on the mean.
    """
    off = []
    for seed in range(10):
        cost, rng = StepCost(), random.Random(seed)
        for number, rows in enumerate(around(10, 5, seed=seed)):
            prompt_rows = rng.choice([0, 0, 1000])
            seconds = 0.002 + 0.0001 * (rows + prompt_rows)
            cost.observe(seconds * rng.lognormvariate(0, 0.1), 1, rows - 1, 4, prompt_rows)
            if number > 100:
                off.append(abs(cost.price - 4 / 0.003 * 0.0001))
    assert fmean(off) < 0.06


def test_requests_that_come_and_go_are_no_cost_of_drafts() -> None:
    """1 ms, 1 ms a request (1 to 7 requests), 0.1 ms a draft token (0 to 6 each)."""
    cost, rng = StepCost(), random.Random(3)
    for _ in range(1000):
        num_requests = rng.randint(1, 7)
        num_drafted = sum(rng.randint(0, 6) for _ in range(num_requests))
        cost.observe(
            0.001 + 0.001 * num_requests + 0.0001 * num_drafted, num_requests, num_drafted, 2 * num_requests
        )
    assert cost.price == pytest.approx(8 / 0.0062 * 0.0001, rel=0.1)


def test_what_moves_slowly_is_no_cost_of_drafts() -> None:
    """0.1 ms a draft token on 2 ms, then on 6 ms with longer drafts, alternating every 60 steps."""
    cost, rng = StepCost(), random.Random(3)
    for number in range(1200):
        is_slow = number // 60 % 2
        num_drafted = rng.randint(0, 4) + 10 * is_slow
        cost.observe(0.002 + 0.004 * is_slow + 0.0001 * num_drafted, 1, num_drafted, 4)
    # a mean step takes 4.7 ms; by levels, a draft token would seem to cost 0.5 ms
    assert cost.price == pytest.approx(4 / 0.0047 * 0.0001, rel=0.5)


def test_from_one_request_to_many() -> None:
    """2 ms, 0.5 ms a request, 0.1 ms a draft token. Half of 6 drafted tokens are accepted."""
    cost, rng = StepCost(), random.Random(3)

    def serve(num_requests: int, num_steps: int) -> float:
        for _ in range(num_steps):
            num_drafted = sum(rng.randint(3, 9) for _ in range(num_requests))
            seconds = 0.002 + 0.0005 * num_requests + 0.0001 * num_drafted
            cost.observe(seconds, num_requests, num_drafted, 4 * num_requests)
        return cost.price

    assert serve(1, 500) == pytest.approx(4 / 0.0031 * 0.0001, rel=0.1)
    assert serve(32, 3 * WINDOW) == pytest.approx(128 / 0.0372 * 0.0001, rel=0.1)
    # the busy steps were longer, so their weight lasts longer
    assert serve(1, 5 * WINDOW) == pytest.approx(4 / 0.0031 * 0.0001, rel=0.2)


def test_prompts_in_every_step() -> None:
    cost = StepCost()
    for rows in around(10, 5):
        cost.observe(0.002 + 0.0001 * rows + 0.0128, 1, rows - 1, 4, 256)
    # their share of a step can't be separated: a row's cost is right, tokens a second are too few
    assert cost.price == pytest.approx(4 / 0.0158 * 0.0001, rel=0.25)


def test_pauses_do_not_change_the_price() -> None:
    calm, paused = StepCost(), StepCost()
    for number, rows in enumerate(around(10, 5)):
        seconds = 0.002 + 0.0001 * rows
        calm.observe(seconds, 1, rows - 1, 4)
        paused.observe(seconds + (0.5 if number % 50 == 20 else 0), 1, rows - 1, 4)
    assert paused.price == pytest.approx(calm.price, rel=0.1)


def test_noise() -> None:
    rng = random.Random(4)
    cost = StepCost()
    prices = []
    for rows in around(10, 5, 4000):
        cost.observe((0.002 + 0.0001 * rows) * rng.lognormvariate(0, 0.2), 1, rows - 1, 4)
        prices.append(cost.price)
    assert sum(prices[WINDOW:]) / len(prices[WINDOW:]) == pytest.approx(0.133, rel=0.2)
    assert 0.02 < min(prices[2 * WINDOW :]) < max(prices[2 * WINDOW :]) < 0.35


def test_a_change_of_speed_is_no_outlier_for_long() -> None:
    cost = StepCost()
    serve(cost, around(10, 5), lambda rows: 0.002 + 0.0001 * rows)
    slower = serve(cost, around(10, 5, 6 * WINDOW), lambda rows: 0.02 + 0.002 * rows)
    assert slower == pytest.approx(4 / 0.04 * 0.002, rel=0.1)


def stairs(cost: StepCost, chance: float = 0.7, seed: int = 3) -> StepCost:
    """Observe 2 ms without drafts. With drafts 3 ms and 0.1 ms per token. Every step gives 4 tokens."""
    rng = random.Random(seed)
    for _ in range(1000):
        num_drafted = rng.randint(1, 16) if rng.random() < chance else 0
        seconds = 0.002 + (0.001 if num_drafted else 0) + 0.0001 * num_drafted
        cost.observe(seconds * rng.lognormvariate(0, 0.03), 1, num_drafted, 4)
    return cost


def test_the_first_draft_token_of_a_step_may_cost_more_than_the_others() -> None:
    cost = stairs(StepCost(has_stair=True))
    token_s = (0.002 + 0.7 * (0.001 + 0.0001 * 8.5)) / 4
    assert cost.price == pytest.approx(0.0001 / token_s, rel=0.15)
    assert cost.stair == pytest.approx(0.001 / token_s, rel=0.15)
    assert cost.token_s == pytest.approx(token_s, rel=0.1)
    assert cost.drafts_s(0) == 0
    assert cost.drafts_s(10) == pytest.approx(0.002, rel=0.1)


def test_without_a_stair_the_price_is_the_mean_of_all_draft_tokens() -> None:
    cost = stairs(StepCost())
    assert cost.stair == 0
    assert cost.price > 1.2 * stairs(StepCost(has_stair=True)).price


def test_drafts_in_every_step_say_nothing_of_a_stair() -> None:
    assert stairs(StepCost(has_stair=True), chance=1.0).stair == pytest.approx(0, abs=0.1)


def test_a_first_draft_token_that_is_cheaper_than_the_others_is_no_stair() -> None:
    """2 ms up to 4 draft tokens, and 0.2 ms for each further one: the price is the mean of all."""
    costs = StepCost(has_stair=True), StepCost()
    rng = random.Random(7)
    for _ in range(1000):
        num_drafted = rng.choice((0, 2, 4, 8, 12))
        for cost in costs:
            cost.observe(0.002 + 0.0002 * max(0, num_drafted - 4), 1, num_drafted, 4)
    assert costs[0].stair == 0
    assert costs[0].price == pytest.approx(costs[1].price)


@pytest.mark.parametrize("size", [1, 3, 16])
def test_drafts_of_one_size_have_a_known_cost(size: int) -> None:
    cost, rng = StepCost(has_stair=True), random.Random(8)
    for _ in range(1000):
        is_drafted = rng.random() < 0.5
        seconds = 0.002 + (0.001 + 0.0001 * size if is_drafted else 0)
        cost.observe(seconds, 1, size if is_drafted else 0, 2)
    assert cost.drafts_s(size) == pytest.approx(0.001 + 0.0001 * size, rel=0.1)


def test_a_stair_that_is_gone_is_forgotten() -> None:
    cost = stairs(StepCost(has_stair=True))
    assert serve(cost, around(5, 4, 6 * WINDOW), lambda rows: 0.002 + 0.0001 * rows) > 0
    assert cost.stair < 0.1


def test_rows_that_never_vary_leave_the_first_price() -> None:
    assert serve(StepCost(), [16] * 1000, lambda rows: 0.004) == pytest.approx(FIRST_PRICE)


def test_a_price_that_stopped_all_drafts_falls_again_without_any() -> None:
    """Rows were expensive, so drafting stopped. After a while the first price applies again."""
    cost, rng = StepCost(), random.Random(5)

    def seconds(rows: int) -> float:
        return 0.001 * rows * rng.lognormvariate(0, 0.05)

    assert serve(cost, around(10, 5), seconds, tokens=8) > 0.7
    assert serve(cost, [8] * (11 * WINDOW), seconds, tokens=8) == pytest.approx(FIRST_PRICE, rel=0.25)


def test_the_same_steps_give_the_same_price() -> None:
    prices = [serve(StepCost(), around(20, 9), lambda rows: 0.001 * rows) for _ in range(2)]
    assert prices[0] == prices[1]


@pytest.mark.parametrize("seconds", [0.0, 5e-324, -1.0, 1e300, math.nan, math.inf])
def test_a_time_that_can_not_be_is_passed_over(seconds: float) -> None:
    cost = StepCost()
    cost.observe(seconds, 1, 9, 4)
    cost.observe(0.001, 0, 0, 0, 256)  # a pass with prompts only
    assert cost.price == FIRST_PRICE
    assert serve(cost, around(10, 5), lambda rows: 0.001 * rows) > 0


def test_after_numbers_beyond_any_batch_the_price_is_learned_again() -> None:
    """Their products are so large that rounding loses the weights of the fit."""
    cost, rng = StepCost(), random.Random(6)
    for _ in range(500):
        huge = (rng.choice((1, 1 << 31, (1 << 32) - 1)) for _ in range(4))
        cost.observe(rng.choice((1e-8, 0.001, 1.0, 3000.0)), *huge)
        assert 0 <= cost.price <= 1
    price = serve(cost, around(10, 5, 80 * WINDOW), lambda rows: 0.002 + 0.0001 * rows)
    assert price == pytest.approx(4 / 0.003 * 0.0001, rel=0.1)


steps = st.lists(
    st.tuples(
        st.floats(allow_nan=True, allow_infinity=True),
        st.integers(0, 1 << 12),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
    ),
    max_size=100,
)


@settings(max_examples=50)
@given(steps)
def test_whatever_happens_a_price_is_a_probability(steps: list[tuple[float, int, int, int, int]]) -> None:
    cost = StepCost()
    for step in steps:
        cost.observe(*step)
        assert math.isfinite(cost.price)
        assert 0 <= cost.price <= 1
    for rows in around(10, 5):
        cost.observe(0.002 + 0.0001 * rows, 1, rows - 1, 4)
    cost.observe(0.003, 1, 9, 4)
    assert math.isfinite(cost.price)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(1e-6, 3), st.integers(1, 2048), st.integers(1, 512)), min_size=1))
def test_the_unit_of_time_does_not_matter(steps: list[tuple[float, int, int]]) -> None:
    in_s, in_ms = StepCost(), StepCost()
    for seconds, rows, tokens in steps:
        in_s.observe(seconds, tokens, rows, tokens)
        in_ms.observe(seconds * 1024, tokens, rows, tokens)
    assert in_s.price == pytest.approx(in_ms.price, abs=1e-6)
