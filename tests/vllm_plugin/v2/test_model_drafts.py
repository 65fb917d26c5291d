"""What the drafts of vLLM's draft model are worth, as far as it is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentspec.stages import StageKey
from agentspec.vllm_plugin.v2.model_drafts import EXPLORE_EVERY, FEWEST, MOST_STAGES, ModelDrafts

STAGE, OTHER = StageKey.parse("sql/write"), StageKey.parse("sql/review")


def least(model: ModelDrafts, stage: StageKey | None = STAGE) -> float:
    return float(model.least([stage])[0])


def learn(model: ModelDrafts, forgone: float, num_accepted: int, times: int = 8, **options: float) -> None:
    for _ in range(times):
        model.learn(STAGE, forgone, 4, num_accepted, options.get("price", 0.0))


def test_a_model_of_which_nothing_is_known_drafts_where_the_trees_hardly_do() -> None:
    model = ModelDrafts(4)
    assert 0.5 < least(model) < 3
    assert least(model, None) == least(model)
    assert model.num_tokens(price=0.0) == 4


def test_a_better_model_drafts_more_often_and_a_worse_one_hardly_ever() -> None:
    good, bad = ModelDrafts(4), ModelDrafts(4)
    for forgone in (0.1, 0.4, 0.8, 1.2, 1.8, 2.5, 3.5):
        learn(good, forgone, 4)
        learn(bad, forgone, 0)
    assert least(good) == 4.0
    assert least(bad) == 0.0
    assert np.all(good.acceptance > 0.85)
    assert np.all(bad.acceptance < 0.2)


def test_the_cases_differ_by_what_the_trees_promised() -> None:
    model = ModelDrafts(4)
    learn(model, 0.1, 3)  # where the trees know nothing the model is right
    learn(model, 0.4, 0)
    learn(model, 0.8, 0)
    assert least(model) == 0.25


def test_a_stage_has_its_own_cases_and_begins_with_those_of_all() -> None:
    model = ModelDrafts(4)
    learn(model, 0.1, 0, times=FEWEST)
    assert least(model) == least(model, OTHER) == 0.0
    for _ in range(8):
        model.learn(OTHER, 0.1, 4, 4, 0.0)
    assert least(model, OTHER) > 0.0
    assert least(model) == 0.0


def test_draft_tokens_have_their_price() -> None:
    cheap, dear = ModelDrafts(4), ModelDrafts(4)
    learn(cheap, 0.4, 1)
    learn(dear, 0.4, 1, price=0.2)
    assert least(cheap) >= 0.5 > least(dear)


def test_the_model_drafts_only_tokens_that_are_worth_the_price_and_tries_more_now_and_then() -> None:
    model = ModelDrafts(4)
    learn(model, 0.1, 2, times=200)
    assert model.acceptance[1] > 0.9
    assert model.acceptance[2] < 0.1
    assert [model.num_tokens(price=0.3) for _ in range(EXPLORE_EVERY - 1)] == [2] * (EXPLORE_EVERY - 1)
    asked = {model.num_tokens(price=0.3) for _ in range(100 * EXPLORE_EVERY)}
    assert max(asked) > 2  # its chances are forgotten if they are not tried
    learn(model, 0.1, 0, times=200)
    assert model.num_tokens(price=0.3) == 0


def test_now_and_then_each_row_tries_the_model() -> None:
    model = ModelDrafts(4)
    learn(model, 0.1, 0)
    asked = np.stack([model.least([STAGE] * 8) for _ in range(20 * EXPLORE_EVERY)])
    assert set(asked.ravel().tolist()) == {0.0, math.inf}
    trials = np.isinf(asked).sum(0)
    assert trials.min() > 5
    assert trials.max() < 50
    assert len(model.least([])) == 0


def test_clients_can_not_name_stages_without_end() -> None:
    model = ModelDrafts(2)
    for number in range(MOST_STAGES + 10):
        model.learn(StageKey.parse(f"stage-{number}"), 0.1, 2, 1, 0.0)
    assert len(model._stages) == MOST_STAGES
    assert least(model, StageKey.parse(f"stage-{MOST_STAGES + 5}")) == least(model, None)


@pytest.mark.parametrize("num_verified", [1, 2])
def test_tokens_that_were_not_verified_say_nothing(num_verified: int) -> None:
    model = ModelDrafts(4)
    before = model.acceptance.copy()
    for _ in range(20):
        model.learn(STAGE, 0.1, num_verified, num_verified, 0.0)
    ratios = model.acceptance[1:] / model.acceptance[:-1]
    assert np.allclose(ratios[num_verified - 1 :], (before[1:] / before[:-1])[num_verified - 1 :])
