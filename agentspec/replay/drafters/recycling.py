"""Token Recycling (arXiv 2408.08696): a table of candidates for the token after each token.

The candidates fill a draft tree of a fixed shape. A record does not contain the model's other likely tokens,
so this is an approximation. The last eight different tokens that followed a token stand in for the model's
eight best tokens.
"""

from __future__ import annotations

import heapq

import numpy as np

from agentspec.draft import Draft, Source
from agentspec.forest import Tokens
from agentspec.replay.calls import Call

NUM_CANDIDATES = 8  # the paper's k

Shape = list[tuple[int, int]]  # a node: the index of its parent, -1 = the root; its rank among the candidates


class TokenRecycling:
    """One table of candidates for all calls, built from prompts and outputs. The most recent ranks first.

    The shape is a tree or, in chain mode, a path of first candidates. The paper has no chain mode. Both
    shapes have ``num_draft`` nodes. If a token has too few candidates, the missing nodes and their
    descendants are left out. The paper's tree is always full.
    """

    def __init__(self, num_draft: int, *, is_tree: bool) -> None:
        self._shape = tree_shape(num_draft) if is_tree else path_shape(num_draft)
        self._candidates: dict[int, list[int]] = {}
        self._last: dict[str, int | None] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call. The prompt's tokens become candidates too."""
        self._last[name] = None
        self._observe(name, call.prompt)

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Fill the shape, beginning at the last token."""
        self._observe(name, accepted)
        last = self._last[name]
        return Draft() if last is None else self._fill(last)

    def finish(self, name: str, accepted: Tokens) -> None:
        """Finish a call. Its candidates stay in the table."""
        self._observe(name, accepted)
        del self._last[name]

    def _observe(self, name: str, tokens: Tokens) -> None:
        before = self._last[name]
        for token in tokens.tolist():
            if before is not None:
                self._put_first(before, token)
            before = token
        self._last[name] = before

    def _put_first(self, before: int, token: int) -> None:
        candidates = self._candidates.setdefault(before, [])
        if candidates and candidates[0] == token:
            return
        if token in candidates:
            candidates.remove(token)
        candidates.insert(0, token)
        del candidates[NUM_CANDIDATES:]

    def _fill(self, root: int) -> Draft:
        token_ids: list[int] = []
        parents: list[int] = []
        drafted = {-1: -1}  # index in the shape -> index in the draft
        for place, (parent, rank) in enumerate(self._shape):
            if (above := drafted.get(parent)) is None:
                continue
            candidates = self._candidates.get(token_ids[above] if above >= 0 else root, ())
            if rank < len(candidates):
                drafted[place] = len(token_ids)
                token_ids.append(candidates[rank])
                parents.append(above)
        return _draft(token_ids, parents)


def _draft(token_ids: list[int], parents: list[int]) -> Draft:
    """Return a draft without estimates and with a match length of 1."""
    size = len(token_ids)
    return Draft(
        np.array(token_ids, np.int32),
        np.array(parents, np.int32),
        np.full(size, np.nan, np.float32),
        float(size),
        1,
        Source.TENANT if size else Source.NONE,
    )


def path_shape(size: int) -> Shape:
    """Return a path of first candidates."""
    return [(place - 1, 0) for place in range(size)]


def tree_shape(size: int) -> Shape:
    """Return the ``size`` nodes of highest weight, parents before children.

    A node's weight is its parent's times 1 / (2 + 2 * rank). Rank 0 is the first candidate. A path of first
    candidates halves at every level, so the root's eighth candidate weighs as much as the end of a path of
    four. Of equal weights, the node of the earlier parent is first, then the lower rank. The paper fixes a
    tree of 80 nodes that favours first candidates in a similar way.
    """
    shape: Shape = []
    leaves: list[tuple[int, int, int]] = []  # inverse weight, parent, rank
    _push_children(leaves, 1, -1)
    while len(shape) < size:
        inverse, parent, rank = heapq.heappop(leaves)
        _push_children(leaves, inverse, len(shape))
        shape.append((parent, rank))
    return shape


def _push_children(leaves: list[tuple[int, int, int]], inverse: int, parent: int) -> None:
    for rank in range(NUM_CANDIDATES):
        heapq.heappush(leaves, (inverse * 2 * (1 + rank), parent, rank))
