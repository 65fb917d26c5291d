from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from lab.drafters.joint_chance import JointChance, Opinions


def trees(chance: float, model_rest: float = 1.0) -> Opinions:
    return Opinions(chance, 0.0, 1 - chance, model_rest)


def model(chance: float, trees_rest: float = 1.0) -> Opinions:
    return Opinions(0.0, chance, trees_rest, 1 - chance)


def both(by_trees: float, by_model: float) -> Opinions:
    return Opinions(by_trees, by_model, 1 - by_trees, 1 - by_model)


@pytest.mark.parametrize("chance", [0.001, 0.2, 0.5, 0.93, 0.999])
def test_at_first_the_word_of_one_counts_as_it_is(chance: float) -> None:
    assert JointChance()(trees(chance)) == pytest.approx(chance, rel=0.01)
    assert JointChance()(model(chance)) == pytest.approx(chance, rel=0.01)


def test_two_that_agree_are_more_certain_than_one() -> None:
    assert JointChance()(both(0.8, 0.8)) > 0.8
    assert JointChance()(both(0.2, 0.2)) < 0.2
    assert 0.3 < JointChance()(both(0.3, 0.7)) < 0.7


def test_what_the_other_one_leaves_counts() -> None:
    assert JointChance()(trees(0.5, model_rest=0.1)) < 0.4
    assert JointChance()(model(0.5, trees_rest=0.1)) < 0.5


@pytest.mark.parametrize("said", [trees(1.0, 0.0), model(1.0, 0.0), both(1.0, 1.0), both(1e-30, 1e-30)])
def test_certainty_is_a_probability(said: Opinions) -> None:
    chance = JointChance()
    for _ in range(2000):
        chance.learn(said, is_accepted=True)
        assert 0 < chance(said) < 1
    assert chance(said) > 0.5


def test_it_learns_what_estimates_are_worth() -> None:
    """The trees are right half as often as they say; the model is too modest, and its word counts."""
    rng, chance = np.random.default_rng(1), JointChance()
    for _ in range(4000):
        said = both(*rng.uniform(0.1, 0.9, 2).tolist())
        truth = 1 / (1 + math.exp(-1.5 * math.log(said.model / (1 - said.model)) - 0.5))
        chance.learn(said, bool(rng.random() < truth))
        alone = trees(float(rng.uniform(0.1, 0.9)))
        chance.learn(alone, bool(rng.random() < alone.trees / 2))
    assert chance(both(0.2, 0.8)) == pytest.approx(0.93, abs=0.04)
    assert chance(both(0.8, 0.2)) == pytest.approx(0.17, abs=0.06)
    assert chance(trees(0.5)) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize(
    "say", [trees, model, lambda chance: both(chance, chance)], ids=["trees", "model", "both"]
)
def test_a_few_confident_mistakes_do_not_turn_the_estimates_round(say: Callable[[float], Opinions]) -> None:
    chance = JointChance()
    for _ in range(20):
        chance.learn(say(0.9999), is_accepted=False)
    estimates = [chance(say(one)) for one in (0.1, 0.5, 0.9, 0.9999)]
    assert estimates == sorted(estimates)
    assert estimates[3] < 0.95


def test_the_same_outcomes_for_long_give_their_share() -> None:
    rng, chance = np.random.default_rng(2), JointChance()
    found = []
    for i in range(4000):
        chance.learn(model(0.9999), bool(rng.random() < 0.9))
        found += [chance(model(0.9999))] if i > 2000 else []
    assert np.mean(found) == pytest.approx(0.9, abs=0.02)
    assert np.std(found) < 0.03
