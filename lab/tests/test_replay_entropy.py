"""Empirical entropy, compared with examples worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.replay.calls import Call
from lab.replay.entropy import empirical_entropy, entropy_by_stage


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_nodes_are_weighted_with_how_often_they_were_followed():
    """Root: 1 1 2 2 9 9 of 6, log2(3) bits. After 1: 2 2. After 2: 9 9. After 1 2: 9 9. All these 0 bits."""
    texts = [ids(1, 2, 9), ids(1, 2, 9)]
    assert empirical_entropy(texts) == pytest.approx(6 * np.log2(3) / (6 + 2 + 2 + 2))


def test_what_follows_in_two_ways_is_a_bit():
    """Root: 1 1 5 6 of 4, 1.5 bits. After 1: 5 6, 1 bit. No token follows 5 or 6."""
    assert empirical_entropy([ids(1, 5), ids(1, 6)]) == pytest.approx((4 * 1.5 + 2 * 1) / 6)


def test_contexts_that_occur_once_do_not_count():
    """Root: four tokens of 4, 2 bits. No other context occurs twice."""
    assert empirical_entropy([ids(1, 2, 3, 4)]) == pytest.approx(2.0)


def test_contexts_are_no_longer_than_the_depth():
    texts = [ids(1, 2, 9), ids(1, 2, 9)]
    assert empirical_entropy(texts, depth=0) == pytest.approx(np.log2(3))
    assert empirical_entropy(texts, depth=1) == pytest.approx(6 * np.log2(3) / (6 + 2 + 2))


@pytest.mark.parametrize("texts", [[], [ids()], [ids(7)]])
def test_nothing_recurs_in_nothing(texts):
    assert empirical_entropy(texts) == 0.0


def naive(texts: list[np.ndarray], depth: int) -> float:
    followed: dict[tuple[int, ...], list[int]] = {}
    for text in (one.tolist() for one in texts):
        for end in range(len(text)):
            for size in range(min(depth, end) + 1):
                followed.setdefault(tuple(text[end - size : end]), []).append(text[end])
    bits, weight = 0.0, 0
    for tokens in followed.values():
        if len(tokens) > 1:
            shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
            bits -= len(tokens) * (shares * np.log2(shares)).sum()
            weight += len(tokens)
    return bits / weight if weight else 0.0


@pytest.mark.parametrize("seed", range(20))
def test_the_same_as_counting_every_context(seed):
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, 3, rng.integers(0, 12)).astype(np.int32) for _ in range(6)]
    assert empirical_entropy(texts, depth=5) == pytest.approx(naive(texts, 5))


def test_stages_are_measured_apart_on_their_first_outputs():
    calls = [
        Call(stage, "s", ids(), ids(*said)) for stage, said in [("x", (1, 1)), ("y", (1, 2)), ("x", (3, 4))]
    ]
    measured = entropy_by_stage(calls, num_examples=1)
    assert measured == {"x": 0.0, "y": 1.0}
    assert list(entropy_by_stage(calls)) == ["x", "y"]
    assert entropy_by_stage(calls)["x"] > 0
