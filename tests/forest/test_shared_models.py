"""Acceptance models that learn from those of other engines."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec import DraftConfig, Forest, ForestConfig, StageKey
from agentspec._native import MODEL_BYTES
from agentspec.errors import ConfigError

PLAN = StageKey("acme", ("plan",))
OTHER = StageKey("acme", ("other",))
LEARNED = DraftConfig(rule="learned")


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def sharing(config: ForestConfig | None = None) -> Forest:
    forest = Forest(config)
    forest.share_models()
    return forest


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


def one_update(forest: Forest) -> bytes:
    ((stage, update),) = forest.take_model_updates()
    assert stage == PLAN
    return update


@pytest.fixture(scope="module")
def update() -> bytes:
    """What a model learned whose drafts were wrong."""
    forest = sharing()
    teach(forest)
    return one_update(forest)


def test_an_update_teaches_another_engine_what_it_teaches_no_other_stage(update):
    forest, before = sharing(), score(Forest())
    forest.merge_model(PLAN, update)
    assert score(forest) < 0.9 * before
    assert score(forest, StageKey("acme", ("other",))) == before
    assert score(forest, StageKey("globex", PLAN.path)) == before
    forest.check_integrity()


def test_there_is_an_update_once_enough_was_learned_and_then_rarely():
    forest = sharing()
    teach(forest, 50, is_right=True)  # one outcome each, or more
    assert forest.take_model_updates() == []
    teach(forest, 2000, is_right=True)
    assert len(one_update(forest)) > 100
    assert forest.take_model_updates() == []
    teach(forest, 150, is_right=True)  # 200 outcomes were enough at first; now it is a tenth of all before
    assert forest.take_model_updates() == []
    teach(forest, 150, is_right=True)
    assert len(one_update(forest)) > 100


def test_what_others_taught_is_not_told_again(update):
    forest = sharing()
    score(forest)
    forest.merge_model(PLAN, update)
    assert forest.take_model_updates() == []
    teach(forest, 2000, is_right=True)
    own = one_update(forest)
    assert len(own) < len(update) / 4  # nothing of the wrong drafts
    told = sharing()
    told.merge_model(PLAN, own)
    assert score(told) > score(sharing())


def test_a_model_stays_between_its_own_and_those_it_learns_from(update):
    """However often an update comes, the estimate does not go beyond the other model's."""
    taught = sharing()
    teach(taught)
    forest = sharing()
    for _ in range(200):
        forest.merge_model(PLAN, update)
    assert score(taught) - 0.02 <= score(forest) < score(sharing())


def test_without_sharing_there_are_no_updates_but_they_can_be_learned(update):
    forest = Forest()
    teach(forest, is_right=True)
    assert forest.take_model_updates() == []
    before = score(forest)
    forest.merge_model(PLAN, update)
    assert score(forest) != before
    forest.check_integrity()


@pytest.mark.parametrize("how", [{"learn": False}, {"is_personal": True}])
def test_requests_that_do_not_learn_or_are_personal_train_no_shared_model(how):
    forest = sharing()
    teach(forest, **how)
    assert forest.take_model_updates() == []
    assert score(forest) == score(Forest())
    own = Forest()
    teach(own, **how)
    assert score(own) < score(Forest())


def test_models_of_a_stage_and_all_below_it_are_forgotten(update):
    forest, before = sharing(), score(Forest())
    stages = [StageKey("acme", path) for path in (("plan",), ("plan", "a"), ("planner",))]
    stages.append(StageKey("globex", ("plan",)))
    for stage in stages:
        forest.merge_model(stage, update)
    forest.forget_models("acme", ("plan",))
    assert [score(forest, stage) == before for stage in stages] == [True, True, False, False]
    forest.forget_models("acme", ())
    assert [score(forest, stage) == before for stage in stages] == [True, True, True, False]
    forest.check_integrity()


def test_shared_models_take_twice_the_memory_and_no_more_than_a_budget_allows(update):
    forest, plain = sharing(), Forest()
    for one in (forest, plain):
        score(one)
    assert forest.memory_bytes() - plain.memory_bytes() == MODEL_BYTES
    late = Forest()
    score(late)
    late.share_models()
    late.share_models()
    assert late.memory_bytes() == forest.memory_bytes()
    small = sharing(ForestConfig(tenant_limit_bytes=16 * 2 * MODEL_BYTES))
    for number in range(5):
        small.merge_model(StageKey("acme", (f"s{number}",)), update)
    assert small.memory_bytes() < 2 * 2 * MODEL_BYTES + 10_000
    for one in (forest, plain, late, small):
        one.check_integrity()


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 50, -1])
def test_an_update_that_is_cut_off_changes_nothing(update, number):
    forest = sharing()
    forest.merge_model(PLAN, update)
    before = forest.model_states()
    with pytest.raises(ConfigError, match="update of a model"):
        forest.merge_model(PLAN, update[:number])
    with pytest.raises(ConfigError, match="update of a model"):
        forest.merge_model(PLAN, update + b"\0")
    assert forest.model_states() == before


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_hostile_updates_are_refused_or_leave_a_sound_model(update, data):
    hostile = bytearray(update)
    for _ in range(data.draw(st.integers(1, 8))):
        hostile[data.draw(st.integers(0, len(hostile) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        hostile = bytearray(data.draw(st.binary(max_size=200)))
    forest = sharing()
    with suppress(ConfigError):
        forest.merge_model(PLAN, bytes(hostile))
    for state in forest.model_states():
        Forest(prior=state)  # raises if it holds a number that no model learns
    assert 0 <= score(forest) < 100


@pytest.fixture
def pooled():
    """A forest in which the stage PLAN has learned, and shares its model with another one."""
    forest = sharing(ForestConfig(tenant_limit_bytes=16 * MODEL_BYTES))
    teach(forest)
    score(forest, OTHER)
    return forest


def test_a_stage_beyond_the_budget_shares_a_model_and_tells_nothing_of_another(pooled):
    assert score(pooled, OTHER) == score(pooled, PLAN) < 0.9 * score(Forest())
    assert score(pooled, StageKey("globex", ("plan",))) == score(Forest())
    teach(pooled, 2000)
    assert pooled.take_model_updates() == []
    pooled.check_integrity()


def test_a_shared_model_learns_what_other_engines_tell_of_its_stages(update):
    forest = sharing(ForestConfig(tenant_limit_bytes=16 * MODEL_BYTES))
    for stage in (OTHER, StageKey("acme", ("third",))):
        score(forest, stage)
    forest.merge_model(PLAN, update)
    assert score(forest) == score(forest, OTHER) < 0.9 * score(Forest())
    assert forest.take_model_updates() == []


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


def test_models_that_are_not_wanted_keep_what_they_have_learned():
    forest = sharing()
    teach(forest)
    assert forest.take_model_updates(lambda stage: stage != PLAN) == []
    assert len(one_update(forest)) > 1000


def num_weight_sets(update: bytes) -> int:
    """Parse the number of sets of weights in an update."""
    place = 4  # behind the number of outcomes
    for _ in range(2):  # cells of both kinds: their number, a gap for each, two bytes for each
        num_cells = int.from_bytes(update[place : place + 2], "little")
        place += 2
        for _ in range(num_cells):
            while update[place] == 255:
                place += 1
            place += 1
        place += 2 * num_cells
    return update[place]


def test_weights_are_shared_however_much_others_have_told():
    others = sharing()
    teach(others, is_right=True)
    update = one_update(others)
    assert num_weight_sets(update) > 0
    forest = sharing()
    for _ in range(10_000):  # more outcomes than a model counts
        forest.merge_model(PLAN, update)
    teach(forest, 20_000, is_right=True)  # an update's most, 16,384
    assert num_weight_sets(one_update(forest)) > 0
