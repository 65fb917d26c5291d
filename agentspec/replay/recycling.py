"""Token Recycling (arXiv 2408.08696): candidates for the token after each token, and a draft tree of a fixed
shape that is filled with them.

A record does not say what else the model held likely, so that this is an approximation: in place of the
model's eight best tokens at a position, a token's candidates are the last eight different ones that followed
it.
"""

from __future__ import annotations

import heapq

import numpy as np

from agentspec.draft import Draft, Source
from agentspec.forest import Tokens
from agentspec.replay.calls import Call

NUM_CANDIDATES = 8  # the paper's k

Shape = list[tuple[int, int]]  # a node: the place of its parent, -1 = the root; its rank among the candidates


class TokenRecycling:
    """One table of candidates for all calls, made of their prompts and outputs; the most recent ranks first.

    The shape is a tree or, in chain mode, a path of first candidates, which the paper does not have; either
    has ``num_draft`` nodes. Where a token has too few candidates, nodes and what is below them are left out;
    the paper's tree is always full.
    """

    def __init__(self, num_draft: int, *, is_tree: bool) -> None:
        self._shape = tree_shape(num_draft) if is_tree else path_shape(num_draft)
        self._candidates: dict[int, list[int]] = {}
        self._last: dict[str, int | None] = {}

    def start(self, name: str, call: Call) -> None:
        """The prompt's tokens are candidates too."""
        self._last[name] = None
        self._observe(name, call.prompt)

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Fill the shape from the last token on."""
        self._observe(name, accepted)
        last = self._last[name]
        return Draft() if last is None else self._fill(last)

    def finish(self, name: str, accepted: Tokens) -> None:
        """What followed what is kept."""
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
        drafted = {-1: -1}  # place in the shape -> place in the draft
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
    """Without estimates; one token was matched."""
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
    """The first candidate of the first candidate, and so on."""
    return [(place - 1, 0) for place in range(size)]


def tree_shape(size: int) -> Shape:
    """The ``size`` nodes of highest weight, parents before children.

    A node weighs its parent's weight times 1 / (2 + 2 * rank), rank 0 being the first candidate: a path of
    first candidates halves at every level, and the root's eighth candidate weighs as much as the end of such
    a path of four. Of nodes that weigh the same that of the earlier parent comes first, then the lower rank.
    The paper fixes a tree of 80 nodes that favours first candidates alike.
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
