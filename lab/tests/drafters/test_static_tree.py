"""Shapes of trees, compared with hand-worked examples."""

from __future__ import annotations

from lab.drafters.static_tree import path_shape, tree_shape


def test_a_tree_prefers_first_candidates() -> None:
    # inverse weights 2 4 6 8 ... below the root, and the same below each node:
    # a 2, b 4, aa 2 x 2 = 4, c 6, d 8, ab 2 x 4 = 8, ba 4 x 2 = 8, aaa 8
    a, b, aa = 0, 1, 2
    assert tree_shape(8, 8) == [(-1, 0), (-1, 1), (a, 0), (-1, 2), (-1, 3), (a, 1), (b, 0), (aa, 0)]
    assert tree_shape(0, 8) == []


def test_a_tree_of_any_size_continues_a_smaller_one() -> None:
    large = tree_shape(80, 8)
    assert all(tree_shape(size, 8) == large[:size] for size in range(80))
    assert all(parent < place for place, (parent, _) in enumerate(large))
    assert len(set(large)) == 80
    assert max(rank for _, rank in large) == 7


def test_a_path_is_of_first_candidates() -> None:
    assert path_shape(3) == [(-1, 0), (0, 0), (1, 0)]
