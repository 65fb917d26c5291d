"""What the acceptance models of stages learn, share and forget."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import DraftConfig, Forest, ForestConfig, StageKey
from agentspec._native import MODEL_BYTES

PLAN, OTHER = StageKey("acme", ("plan",)), StageKey("acme", ("other",))
ELSEWHERE = StageKey("globex", ("plan",))
LEARNED = DraftConfig(rule="learned")


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def teach(
    forest: Forest, num_steps: int = 300, *, is_right: bool = False, stage: StageKey = PLAN, **how: bool
) -> None:
    """Run a request whose own text drafts 3 after 1 2."""
    forest.start("taught", stage, ids(1, 2, 3), draft=LEARNED, **how)
    for i in range(num_steps):
        forest.step([("taught", ids(1, 2))])
        forest.observe("taught", ids(3 if is_right else 50 + i))
    forest.finish("taught", learn=False)


def score(forest: Forest, stage: StageKey = PLAN) -> float:
    forest.start("score", stage, ids(1, 2, 3, 1, 2), draft=LEARNED)
    found = forest.draft("score").score
    forest.finish("score", learn=False)
    return found


@pytest.mark.parametrize("how", [{"learn": False}, {"is_personal": True}, {}])
@pytest.mark.parametrize("is_impersonal", [False, True])
def test_personal_requests_train_no_model_once_that_is_asked_for(how, is_impersonal):
    forest = Forest()
    if is_impersonal:
        forest.learn_nothing_personal()
    teach(forest, **how)
    if is_impersonal and how:
        assert score(forest) == score(Forest())
    else:
        assert score(forest) < score(Forest())


def test_models_of_a_stage_and_all_below_it_are_forgotten():
    forest, before = Forest(), score(Forest())
    stages = [StageKey("acme", path) for path in (("plan",), ("plan", "a"), ("planner",))]
    stages.append(ELSEWHERE)
    for stage in stages:
        teach(forest, stage=stage)
    forest.forget_models("acme", ("plan",))
    assert [score(forest, stage) == before for stage in stages] == [True, True, False, False]
    forest.forget_models("acme", ())
    assert [score(forest, stage) == before for stage in stages] == [True, True, True, False]
    forest.check_integrity()


# ---- stages beyond the budget share one ----


@pytest.fixture
def pooled() -> Forest:
    """Return a forest in which the stage PLAN has learned, and shares its model with another one."""
    forest = Forest(ForestConfig(tenant_limit_bytes=16 * MODEL_BYTES))
    teach(forest)
    score(forest, OTHER)
    return forest


def test_a_stage_beyond_the_budget_shares_a_model_of_its_tenant(pooled):
    assert score(pooled, OTHER) == score(pooled, PLAN) < 0.9 * score(Forest())
    assert score(pooled, ELSEWHERE) == score(Forest())
    pooled.check_integrity()


@pytest.mark.parametrize("path", [("plan",), ("other",), ("third",), ()])
def test_a_shared_model_is_forgotten_with_any_stage_of_its_tenant(pooled, path):
    pooled.forget_models("globex", path)
    assert score(pooled) < 0.9 * score(Forest())
    pooled.forget_models("acme", path)
    assert score(pooled) == score(pooled, OTHER) == score(Forest())


@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("num_models", [1, 2, 3, 5])
def test_stages_that_take_turns_keep_what_they_learn(num_models, is_right):
    """The evidence of six stages in turn counts with any number of models as with one for all."""
    stages = [StageKey("acme", (f"s{number}",)) for number in range(6)]
    forests = [Forest(ForestConfig(tenant_limit_bytes=16 * most * MODEL_BYTES)) for most in (num_models, 6)]
    for forest in forests:
        for number in range(10 * len(stages)):
            teach(forest, 8, is_right=is_right, stage=stages[number % len(stages)])
    few, own = ([score(forest, stage) for stage in stages] for forest in forests)
    prior = score(Forest())
    for found, alone in zip(few, own, strict=True):
        assert found >= 0.99 * alone > prior if is_right else found <= 1.01 * alone < prior
