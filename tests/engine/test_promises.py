"""Whether the drafts of a step are worth their time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agentspec.draft import Draft
from agentspec.engine.promises import Promises
from agentspec.steps import StepCost


def draft(*probs: float) -> Draft:
    size = len(probs)
    return Draft(
        token_ids=np.zeros(size, np.int32),
        parents=np.arange(-1, size - 1, dtype=np.int32),
        probs=np.array(probs, np.float32),
        score=sum(probs),
    )


def cost_of(stair_s: float) -> StepCost:
    """Return the cost of steps of 1 ms and 0.05 ms per draft token, each of which gives 2 tokens."""
    cost = StepCost(has_stair=True)
    for number in range(600):
        num_drafted = (0, 3, 7, 0, 1, 12, 5)[number % 7]
        cost.observe(0.001 + (stair_s if num_drafted else 0) + 0.00005 * num_drafted, 1, num_drafted, 2)
    return cost


def test_before_any_step_all_drafts_are_worth_their_time() -> None:
    assert Promises().are_worth([draft(0.3), draft()], StepCost(has_stair=True))


def test_drafts_have_to_be_worth_the_stair_together() -> None:
    cost = cost_of(stair_s=0.001)
    assert cost.stair == pytest.approx(1.0, rel=0.2)
    assert not Promises().are_worth([draft(0.9)], cost)
    assert Promises().are_worth([draft(0.9), draft(0.8)], cost)
    assert Promises().are_worth([draft(0.9, 0.8, 0.7)], cost)


def test_a_token_saves_the_time_that_it_takes_without_drafts_if_that_is_known() -> None:
    cost = cost_of(stair_s=0.001)
    assert not Promises().are_worth([draft(0.7)], cost)  # an average token takes half as long
    assert Promises().are_worth([draft(0.7)], cost, plain_token_s=2 * cost.token_s)
    assert not Promises().are_worth([draft(0.9, 0.8)], cost, plain_token_s=0.5 * cost.token_s)


def test_promises_have_to_exceed_their_cost() -> None:
    cost = cost_of(stair_s=0.0)
    assert not Promises().are_worth([draft(1.1 * cost.price)], cost)
    assert Promises().are_worth([draft(1.2 * cost.price)], cost)


def test_no_drafts_cost_nothing() -> None:
    assert Promises().are_worth([draft(), draft()], cost_of(stair_s=0.001))


def test_without_a_stair_a_token_needs_its_price_only() -> None:
    assert Promises().are_worth([draft(0.2)], cost_of(stair_s=0.0))


def test_promises_are_corrected_by_what_was_accepted() -> None:
    promises, cost = Promises(), cost_of(stair_s=0.001)
    for _ in range(2000):
        promises.judge([(draft(0.5, 0.5), 2), (draft(), 0), (draft(0.5), 1)])
    assert promises.truth == pytest.approx(2, rel=0.05)
    assert promises.are_worth([draft(0.9)], cost)
    for _ in range(4000):
        promises.judge([(draft(0.5, 0.5), 0)])
    assert promises.truth == 0.5
    assert not promises.are_worth([draft(0.6, 0.6)], cost)


def test_drafts_that_never_promise_anything_are_no_division_by_zero() -> None:
    promises, worthless = Promises(), [(draft(0.0), 0)]
    for _ in range(200_000):  # until a float has no smaller value
        promises.judge(worthless)
    assert promises.truth == 0.5


def test_steps_without_drafts_change_no_promise() -> None:
    promises = Promises()
    for _ in range(1000):
        promises.judge([(draft(), 0)])
    assert promises.truth == 1


def test_drafts_without_estimates_are_always_verified() -> None:
    promises, cost = Promises(), cost_of(stair_s=0.003)
    unjudged = replace(draft(1.0, 1.0), probs=np.full(2, np.nan, np.float32))
    promises.judge([(unjudged, 0)] * 1000)
    assert promises.truth == 1
    assert promises.are_worth([unjudged, draft()], cost)
    assert not promises.are_worth([draft(0.9)], cost)


def test_refused_drafts_are_tried_now_and_then_at_a_bounded_cost() -> None:
    promises, cost = Promises(), cost_of(stair_s=0.001)
    tried = sum(promises.are_worth([draft(0.5)], cost) for _ in range(10_000))
    loss = 1.15 * (cost.stair + cost.price) - 0.5
    assert 0 < tried * loss <= 0.004 * 10_000


def test_a_dear_draft_is_tried_too() -> None:
    promises, cost = Promises(), cost_of(stair_s=0.001)
    many = [draft(*[0.01] * 30)] * 8  # they cost more than the trials of any other drafts
    assert any(promises.are_worth(many, cost) for _ in range(20_000))
