"""Draft trees of a fixed shape, filled from a table of likely next tokens. No torch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from agentspec.draft import Draft, Source

Shape = list[tuple[int, int]]  # a node: the index of its parent, -1 = the root; its rank among the candidates


def path_shape(size: int) -> Shape:
    """Return a path of first candidates."""
    return [(place - 1, 0) for place in range(size)]


def tree_shape(size: int, num_candidates: int) -> Shape:
    """Return the ``size`` nodes of highest weight, parents before children.

    A node's weight is its parent's times 1 / (2 + 2 * rank). Rank 0 is the first candidate. A path of first
    candidates halves at every level, so the root's eighth candidate weighs as much as the end of a path of
    four. Of equal weights, the node of the earlier parent is first, then the lower rank. Token Recycling's
    paper fixes a tree of 80 nodes that favours first candidates in a similar way.
    """
    shape: Shape = []
    leaves: list[tuple[int, int, int]] = []  # inverse weight, parent, rank
    _push_children(leaves, 1, -1, num_candidates)
    while len(shape) < size:
        inverse, parent, rank = heapq.heappop(leaves)
        _push_children(leaves, inverse, len(shape), num_candidates)
        shape.append((parent, rank))
    return shape


def fill(shape: Shape, root: int, candidates: Callable[[int], Sequence[int]], source: Source) -> Draft:
    """Return the draft of this shape behind the token ``root``, without estimates.

    Args:
        candidates: returns the tokens that may follow a token, the likeliest first. If they are too few, the
            missing nodes and their descendants are left out.
        source: of the draft.
    """
    token_ids: list[int] = []
    parents: list[int] = []
    drafted = {-1: -1}  # index in the shape -> index in the draft
    for place, (parent, rank) in enumerate(shape):
        if (above := drafted.get(parent)) is None:
            continue
        found = candidates(token_ids[above] if above >= 0 else root)
        if rank < len(found):
            drafted[place] = len(token_ids)
            token_ids.append(int(found[rank]))
            parents.append(above)
    return unjudged(token_ids, parents, source)


def unjudged(token_ids: Sequence[int], parents: Sequence[int], source: Source) -> Draft:
    """Return a draft without estimates and with a match length of 1."""
    size = len(token_ids)
    return Draft(
        np.array(token_ids, np.int32),
        np.array(parents, np.int32),
        np.full(size, np.nan, np.float32),
        float(size),
        1,
        source if size else Source.NONE,
    )


def _push_children(
    leaves: list[tuple[int, int, int]], inverse: int, parent: int, num_candidates: int
) -> None:
    for rank in range(num_candidates):
        heapq.heappush(leaves, (inverse * 2 * (1 + rank), parent, rank))
