"""The dynamic tree against all paths of known chances."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from agentspec.draft import Draft, Source
from lab.drafters.growing_tree import GrowingTree

WIDTH, DEPTH = 3, 3
Path = tuple[int, ...]


def chances(path: Path) -> list[tuple[int, float]]:
    """Return what may follow a path: tokens with their chances, the likeliest first. All differ."""
    rng = np.random.default_rng([7, *path])
    weights = np.sort(rng.random(WIDTH) + 0.01)[::-1]
    return [(10 * (len(path) + 1) + i, float(w / weights.sum())) for i, w in enumerate(weights)]


def grown(tree: GrowingTree, depth: int = DEPTH) -> Draft:
    """Grow a tree as a network would: it knows the path of each row of the last level."""
    paths: list[Path] = [()]
    for level in range(1, depth + 1):
        follow = [chances(path)[: tree.num_candidates] for path in paths]
        tree.add(
            np.array([[token for token, _ in row] for row in follow], np.int32),
            np.log(np.array([[chance for _, chance in row] for row in follow], np.float32)),
        )
        if level == depth:
            break
        wanted = tree.expand()
        if wanted is None:
            break
        paths = [
            (*paths[row], token) for row, token in zip(wanted.rows, wanted.token_ids.tolist(), strict=True)
        ]
    return tree.draft()


def drafted_paths(draft: Draft) -> list[Path]:
    paths: list[Path] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def chance(path: Path) -> float:
    return prod(dict(chances(path[:size]))[path[size]] for size in range(len(path)))


def all_paths() -> list[Path]:
    found: list[Path] = []
    level: list[Path] = [()]
    for _ in range(DEPTH):
        level = [(*path, token) for path in level for token, _ in chances(path)]
        found += level
    return found


@pytest.mark.parametrize("most_tokens", [1, 2, 5, 9, 39, 100])
def test_the_likeliest_nodes_are_drafted(most_tokens: int) -> None:
    draft = grown(GrowingTree(27, most_tokens, 0.0))  # wide enough to expand everything
    paths = drafted_paths(draft)
    best = sorted(all_paths(), key=chance, reverse=True)[:most_tokens]
    assert set(paths) == set(best)
    assert draft.probs.tolist() == pytest.approx([chance(path) for path in paths])
    assert draft.score == pytest.approx(sum(map(chance, paths)))
    assert draft.source is Source.MODEL


def test_a_level_expands_the_likeliest_nodes_only() -> None:
    paths = drafted_paths(grown(GrowingTree(WIDTH, 100, 0.0)))
    by_length = {size: [path for path in paths if len(path) == size] for size in range(1, DEPTH + 1)}
    for size in range(1, DEPTH):
        expanded = {path[:size] for path in by_length[size + 1]}
        assert expanded == set(sorted(by_length[size], key=chance, reverse=True)[:WIDTH])


def test_width_1_is_the_greedy_chain() -> None:
    draft = grown(GrowingTree(1, 100, 0.0))
    path: Path = ()
    for _ in range(DEPTH):
        path = (*path, chances(path)[0][0])
    assert draft.is_chain
    assert tuple(draft.token_ids.tolist()) == path


@pytest.mark.parametrize("least", [0.05, 0.2, 0.5])
def test_unlikely_nodes_are_left_out(least: float) -> None:
    draft = grown(GrowingTree(27, 100, least))
    assert set(drafted_paths(draft)) == {path for path in all_paths() if chance(path) >= least}


def test_nothing_likely_is_no_draft() -> None:
    draft = grown(GrowingTree(2, 100, 1.0))
    assert len(draft) == 0
    assert draft.source is Source.NONE


def test_parents_of_computed_nodes() -> None:
    tree = GrowingTree(2, 100, 0.0)
    tree.add(np.array([[1, 2]], np.int32), np.log(np.array([[0.6, 0.4]], np.float32)))
    first = tree.expand()
    assert first is not None
    assert (first.token_ids.tolist(), first.rows, first.parents.tolist()) == ([1, 2], [0, 0], [-1, -1])
    tree.add(np.array([[3, 4], [5, 6]], np.int32), np.log(np.array([[0.5, 0.4], [0.9, 0.1]], np.float32)))
    second = tree.expand()
    assert second is not None
    assert second.token_ids.tolist() == [5, 3]  # 0.36 and 0.3
    assert second.rows == [1, 0]
    assert second.parents.tolist() == [-1, -1, 1, 0]


def test_no_node_is_computed_whose_children_could_not_be_drafted() -> None:
    tree = GrowingTree(2, 2, 0.0)
    tree.add(np.array([[1, 2]], np.int32), np.log(np.array([[0.9, 0.1]], np.float32)))
    level = tree.expand()
    assert level is not None
    assert level.token_ids.tolist() == [1]  # nothing below 0.1 could be among the first two
    chain = GrowingTree(1, 1, 0.0)
    chain.add(np.array([[1]], np.int32), np.zeros((1, 1), np.float32))
    assert chain.expand() is None
    nothing = GrowingTree(2, 0, 0.0)
    nothing.add(np.array([[1, 2]], np.int32), np.zeros((1, 2), np.float32))
    assert nothing.expand() is None
    assert len(nothing.draft()) == 0


def test_drafts_are_trees_for_all_sizes() -> None:
    for width, most in itertools.product((1, 2, 4), (1, 3, 8)):
        draft = grown(GrowingTree(width, most, 0.01))
        assert (draft.parents < np.arange(len(draft))).all()
        assert len(draft) <= most
