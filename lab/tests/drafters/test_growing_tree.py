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


def test_drafts_are_trees_for_all_sizes() -> None:
    for width, most in itertools.product((1, 2, 4), (1, 3, 8)):
        draft = grown(GrowingTree(width, most, 0.01))
        assert (draft.parents < np.arange(len(draft))).all()
        assert len(draft) <= most
