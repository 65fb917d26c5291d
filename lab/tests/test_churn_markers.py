"""Tests that find out by drafting which outputs a tree still holds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from agentspec import Forest, Source
from lab.churn.markers import CONTEXT_TOKENS, MARKER_TOKENS, Markers, marker
from lab.churn.meter import Meter
from lab.churn.scopes import SCOPES, Scope

TREES_PER_OUTPUT = {"stage": 1, "tenant": 3, "forest": 3, "router": 3, "popular": 3}


def markers_of(scope: Scope, forest: Forest) -> Markers:
    return Markers(forest, scope, Meter(scope.memory_of(forest), 1 << 20))


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
    forest = scope.forest(64 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    markers.learn()
    markers.check()
    num_outputs = 3 * len(scope.stages())  # the first one occurs twice
    assert (markers.num_known, markers.num_forgotten) == (num_outputs * TREES_PER_OUTPUT[name], 0)
    assert (markers.in_order, markers.num_refused) == (None, 0)
    forest.evict(scope.stages()[0])
    markers.check()
    assert markers.num_forgotten == 3
    assert markers.in_order is (None if name == "stage" else True)
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
    assert markers.in_order is True
    assert min(markers.num_known, markers.num_forgotten) >= 2


def test_an_output_that_occurs_again_must_be_known_again() -> None:
    scope = SCOPES["stage"]
    [stage] = scope.stages()
    forest = scope.forest(1 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    markers.learn()  # order of last occurrence: 1, 0, 2
    forest.evict(stage)
    for number in (0, 2):
        forest.learn(stage, marker(number))
    markers.check()
    assert markers.in_order is True
    forest.evict(stage)
    forest.learn(stage, marker(2))
    markers.check()
    assert (markers.in_order, markers.num_known, markers.num_forgotten) == (True, 1, 2)


def test_an_output_that_occurs_again_is_no_longer_old() -> None:
    scope = SCOPES["stage"]
    [stage] = scope.stages()
    forest = scope.forest(1 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    markers.learn()
    forest.evict(stage)
    for number in (1, 2):
        forest.learn(stage, marker(number))
    markers.check()
    assert markers.in_order is False


def test_what_comes_back_is_noticed() -> None:
    scope = SCOPES["stage"]
    [stage] = scope.stages()
    forest = scope.forest(1 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    forest.evict(stage)
    markers.check()
    assert markers.in_order is None
    forest.learn(stage, marker(0))
    markers.check()
    assert markers.in_order is False


def test_markers_have_no_tokens_in_a_row_in_common() -> None:
    texts = [marker(number) for number in range(500)]
    assert {(len(text), text.dtype.name) for text in texts} == {(MARKER_TOKENS, "int32")}
    context = [
        tuple(window) for text in texts for window in sliding_window_view(text, CONTEXT_TOKENS).tolist()
    ]
    assert len(set(context)) == len(context)
    assert marker(7).tolist() == texts[7].tolist()


def test_an_output_without_its_end_is_not_known() -> None:
    scope = SCOPES["stage"]
    [stage] = scope.stages()
    forest = scope.forest(1 << 20)
    markers = markers_of(scope, forest)
    markers.learn()
    forest.evict(stage)
    forest.learn(stage, marker(0)[:-1])
    forest.learn(stage, marker(1))
    markers.check()
    assert (markers.num_known, markers.num_forgotten) == (1, 1)


def test_what_is_not_learned_is_noticed() -> None:
    scope = SCOPES["tenant"]
    markers = markers_of(scope, scope.forest(4096))
    markers.learn()
    assert markers.num_refused == 3 * 2 * len(scope.stages())


def test_the_budget_is_that_of_the_scope() -> None:
    for name, scope in SCOPES.items():
        config = scope.forest(1 << 20).config
        budgets = {"stage": config.stage_limit_bytes, "tenant": config.tenant_limit_bytes}
        budgets["forest"] = config.total_limit_bytes
        limited = "tenant" if scope.is_hard else name
        assert [other for other, budget in budgets.items() if budget == 1 << 20] == [limited]
        assert config.sources == ((Source.STAGE,) if name == "stage" else scope.sources)
