"""Padding and cutting by hand, against brute force, and in a loop with the learned price on a staircase."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.steps import StepCost
from agentspec.vllm_plugin.capture_sizes import CaptureSizes

BY_33 = CaptureSizes(range(33, 513, 33))  # of vLLM's model runner V1 with 32 draft tokens


def worth(sizes: CaptureSizes, chances: list[list[float]], num_other_tokens: int, price: float) -> list[int]:
    """Return how many tokens of each row are worth verifying."""
    flat = np.array([chance for row in chances for chance in row])
    return list(sizes.worth_verifying(flat, list(map(len, chances)), num_other_tokens, price))


def test_a_step_is_padded_to_the_next_size() -> None:
    sizes = CaptureSizes([8, 4, 1, 2, 4])
    assert [sizes.padded(number) for number in (0, 1, 2, 3, 4, 5, 8, 9, 100)] == [0, 1, 2, 4, 4, 8, 8, 9, 100]
    assert [CaptureSizes().padded(number) for number in (0, 1, 77)] == [0, 1, 77]


def test_tokens_that_are_free_stay() -> None:
    assert worth(BY_33, [[0.01] * 20, [0.5, 0.01]], 2, 0.9) == [20, 2]


def test_a_few_unlikely_tokens_are_not_worth_a_stair() -> None:
    # 2 + 33 tokens would be padded to 66: 33 more tokens at 0.1 each for a chance of 0.2 and one of 0.3
    chances = [[0.9] * 15 + [0.2], [0.9] * 16 + [0.3]]
    assert worth(BY_33, chances, 2, 0.1) == [15, 16]
    assert worth(BY_33, chances, 2, 0.001) == [16, 17]  # worth it if tokens are cheap


def test_all_drafts_are_cut_if_requests_fill_a_size() -> None:
    assert worth(BY_33, [[0.5], *[[]] * 32], 33, 0.1) == [0] * 33
    assert worth(BY_33, [[0.99] * 10, *[[]] * 32], 33, 0.1)[0] == 10


def test_without_sizes_or_beyond_them_nothing_is_cut() -> None:
    assert worth(CaptureSizes(), [[0.5, 0.3], []], 2, 0.2) == [2, 0]
    assert worth(BY_33, [[0.5, 0.3]], 600, 0.2) == [2]
    assert worth(BY_33, [[], []], 2, 0.2) == [0, 0]
    assert worth(BY_33, [], 0, 0.2) == []


rows = st.lists(
    st.lists(st.floats(0.01, 1), max_size=3).map(lambda row: sorted(row, reverse=True)), max_size=4
)


@settings(max_examples=200)
@given(rows, st.sets(st.integers(1, 20)), st.integers(0, 6), st.floats(0, 1))
def test_no_choice_of_tokens_above_the_price_is_better(
    chances: list[list[float]], sizes: set[int], other: int, price: float
) -> None:
    chances = [[chance for chance in row if chance >= price] for row in chances]
    num_other = len(chances) + other
    captured = CaptureSizes(sizes)

    def value(lengths: tuple[int, ...]) -> float:
        gained = sum(sum(row[:length]) for row, length in zip(chances, lengths, strict=True))
        return gained - price * captured.padded(num_other + sum(lengths))

    kept = worth(captured, chances, num_other, price)
    best = max(map(value, product(*(range(len(row) + 1) for row in chances))))
    assert value(tuple(kept)) == pytest.approx(best, abs=1e-9)


def seconds(num_tokens: int) -> float:
    """Return the time of a step of an 8B model: bound by memory up to 170 tokens, then by arithmetic."""
    return 0.0038 + 0.000004 * num_tokens + 0.000022 * max(0, num_tokens - 170)


def tokens_per_second(num_requests: int, way: str) -> float:
    """Return the throughput of one of three ways to heed the sizes, after 200 steps to learn the price.

    "none": the price alone. "padded": the price is learned from padded counts. "cut": drafts are cut.
    """
    rng, cost = random.Random(7), StepCost()
    total_s = total = 0.0
    for step in range(700):
        chances = []
        for _ in range(num_requests):
            chance = rng.choice((0.0, 0.3, 0.6, 0.8, 0.9, 0.97))
            row = [chance ** (place + 1) for place in range(32)]
            chances.append([one for one in row if one and one >= cost.price])
        lengths = worth(BY_33, chances, num_requests, cost.price) if way == "cut" else [*map(len, chances)]
        num_drafted = sum(lengths)
        num_padded = BY_33.padded(num_requests + num_drafted)
        step_s = seconds(num_padded) * rng.lognormvariate(0, 0.03)
        num_tokens = num_requests + sum(
            sum(row[:length]) for row, length in zip(chances, lengths, strict=True)
        )
        observed = num_padded - num_requests if way == "padded" else num_drafted
        cost.observe(step_s, num_requests, observed, round(num_tokens))
        if step >= 200:
            total_s, total = total_s + step_s, total + num_tokens
    return total / total_s


def test_cutting_is_worth_it_on_a_staircase() -> None:
    for num_requests, gain in ((1, 0.99), (16, 1.02), (64, 1.04), (128, 1.06)):
        assert tokens_per_second(num_requests, "cut") > gain * tokens_per_second(num_requests, "none")


def test_a_price_from_padded_counts_is_worse() -> None:
    """All tokens of a single request are free, which padded counts can't tell: they never vary."""
    assert tokens_per_second(1, "padded") < 0.96 * tokens_per_second(1, "none")
