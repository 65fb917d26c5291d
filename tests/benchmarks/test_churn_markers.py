"""Which outputs a tree still knows, found out by drafting."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import Forest, Source
from agentspec.benchmarks.churn.markers import FIRST_TOKEN, MARKER_TOKENS, PER_STAGE, Markers
from agentspec.benchmarks.churn.meter import Meter
from agentspec.benchmarks.churn.scopes import SCOPES, Scope

TREES_PER_OUTPUT = {"stage": 1, "tenant": 3, "forest": 3}


def markers_of(scope: Scope, forest: Forest) -> Markers:
    return Markers(forest, scope, Meter(scope.memory_of(forest)))


@pytest.mark.parametrize(("name", "num_trees"), [("stage", 1), ("tenant", 7), ("forest", 21)])
def test_every_tree_of_a_scope(name: str, num_trees: int) -> None:
    scope = SCOPES[name]
    trees = scope.trees()
    assert len({(tree.seen_from, tree.source) for tree in trees}) == len(trees) == num_trees
    for stage in scope.stages():
        learning = [tree for tree in trees if tree.learns_from(stage)]
        assert {tree.source for tree in learning} == set(scope.sources)
        assert {tree.seen_from.tenant for tree in learning} == {stage.tenant}


@pytest.mark.parametrize("name", SCOPES)
def test_each_tree_is_asked_by_itself(name: str) -> None:
    scope = SCOPES[name]
    forest = scope.forest(8 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    markers.learn()
    markers.check()
    num_outputs = 2 * PER_STAGE * len(scope.stages())
    assert (markers.num_known, markers.num_forgotten) == (num_outputs * TREES_PER_OUTPUT[name], 0)
    assert (markers.is_in_order, markers.num_refused) == (True, 0)
    forest.evict(scope.stages()[0])
    markers.check()
    assert markers.num_forgotten == 2 * PER_STAGE
    assert markers.is_in_order
    assert forest.stats().num_requests == 0


def test_a_tree_that_overflows_forgets_its_oldest_outputs() -> None:
    scope = SCOPES["stage"]
    forest, rng = scope.forest(1 << 20), np.random.default_rng(0)
    markers = markers_of(scope, forest)
    for _ in range(20):
        markers.learn()
        for _ in range(20):
            forest.learn(scope.stages()[0], rng.integers(0, 1000, 200, np.int32))
        markers.check()
    assert markers.is_in_order
    assert min(markers.num_known, markers.num_forgotten) >= PER_STAGE


def test_what_comes_back_is_noticed() -> None:
    scope = SCOPES["stage"]
    [stage] = scope.stages()
    forest = scope.forest(1 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    forest.evict(stage)
    markers.check()
    assert markers.is_in_order
    forest.learn(stage, np.arange(FIRST_TOKEN, FIRST_TOKEN + MARKER_TOKENS, dtype=np.int32))
    markers.check()
    assert not markers.is_in_order


def test_what_is_not_learned_is_noticed() -> None:
    scope = SCOPES["tenant"]
    markers = markers_of(scope, scope.forest(4096))
    markers.learn()
    assert markers.num_refused == 3 * PER_STAGE * len(scope.stages())


def test_the_budget_is_that_of_the_scope() -> None:
    for name, scope in SCOPES.items():
        config = scope.forest(1 << 20).config
        budgets = {"stage": config.stage_limit_bytes, "tenant": config.tenant_limit_bytes}
        budgets["forest"] = config.total_limit_bytes
        assert [other for other, budget in budgets.items() if budget == 1 << 20] == [name]
        assert config.sources == ((Source.STAGE,) if name == "stage" else scope.sources)
