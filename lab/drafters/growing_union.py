"""The union of two drafts while a model adds to it, and the trees behind what the model adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft
from agentspec.proposer import Tokens
from lab.drafters.draft_union import TEXT, DraftUnion
from lab.drafters.growing_tree import Level
from lab.drafters.joint_chance import JointChance

NUM_CANDIDATES = 64  # of each row; the trees' tokens are looked up among them
_NUM_CONTINUED = 2  # likeliest nodes of a level that the trees continue: more gain little (lab/log)


class GrowingUnion:
    """A :class:`~lab.drafters.model_drafter.DraftTree` that begins with the trees' draft.

    As in :class:`~lab.drafters.growing_tree.GrowingTree`, the ``width`` likeliest new nodes are
    expanded in each level, by what both drafters say. So the model estimates the trees' tokens too, and
    continues their paths where these are likelier than its own. The trees continue the two likeliest nodes
    of a level, unless they have.

    Args:
        union: has the trees' draft, estimated. It grows.
        chance: estimates its nodes.
        continued: returns the trees' draft behind tokens that are assumed to follow the text, without tokens
            below a chance.
        vocab_size: of the model. The trees may have learned other tokens.
        width: nodes expanded in a level; 1 = the draft will be a chain.
        most_tokens: most tokens drafted.
        least_chance: less likely nodes are neither expanded nor drafted.
    """

    num_candidates = NUM_CANDIDATES

    def __init__(
        self,
        union: DraftUnion,
        chance: JointChance,
        continued: Callable[[Tokens, float], Draft],
        *,
        vocab_size: int,
        width: int,
        most_tokens: int,
        least_chance: float,
    ) -> None:
        self._union = union
        self._chance = chance
        self._continued = continued
        self._vocab_size = vocab_size
        self._width = width
        self._most_tokens = most_tokens
        self._least = max(least_chance, 1e-9)
        self._expanded: dict[int, int] = {}  # node -> its place in the order of computation
        self._last: Sequence[int] = [TEXT]  # the nodes expanded last
        self._next: Sequence[int] = []  # those to expand next

    def add(self, token_ids: NDArray[np.int32], log_probs: NDArray[np.float32]) -> None:
        """Add the model's estimates of the tokens behind each node expanded last.

        Args:
            token_ids: int32 ``[nodes, n]``, the likeliest first.
            log_probs: float32 ``[nodes, n]``.
        """
        for node, tokens, logs in zip(self._last, token_ids.tolist(), log_probs.tolist(), strict=True):
            self._claim(node, tokens, logs)
        self._next = self._likeliest_behind(self._last)
        for node in self._next[:_NUM_CONTINUED]:
            self._continue(node)

    def expand(self) -> Level | None:
        """Return the nodes to compute next; None if the tree is complete."""
        if not self._next:
            return None
        union, before = self._union, self._last
        for node in self._next:
            self._expanded[node] = len(self._expanded)
        parents = [self._expanded.get(union.parent(node), -1) for node in self._expanded]
        rows = [before.index(union.parent(node)) for node in self._next]
        self._last, self._next = self._next, []
        return Level(union.tokens_of(self._last), rows, np.array(parents, np.int32))

    def _claim(self, node: int, tokens: Sequence[int], logs: Sequence[float]) -> None:
        """Add the model's likeliest tokens behind a node, and its estimates of those that are there."""
        union, width = self._union, self._width
        known = {union.token(child) for child in union.children(node)}
        least = math.log(self._least / union.prob(node))
        claimed = [pair for pair in zip(tokens[:width], logs[:width], strict=True) if pair[1] >= least]
        if known:
            found = (pair for pair in zip(tokens, logs, strict=True) if pair[0] in known)
            claimed += [pair for pair in found if not math.isnan(pair[1])]
        for token, log in claimed:
            union.claim(node, token, math.exp(log))
        union.rate_behind(node, self._chance)

    def _continue(self, node: int) -> None:
        union = self._union
        if not union.is_continued(node):
            least = min(1.0, self._least / union.prob(node))
            union.add(self._continued(union.tokens_to(node), least), node)  # estimated with the next level

    def _likeliest_behind(self, nodes: Sequence[int]) -> list[int]:
        """Return the likeliest children of some nodes, if what follows them may be drafted."""
        union = self._union
        if self._width == 1:
            bound = 0.0 if len(self._expanded) + 1 < self._most_tokens else math.inf
        else:
            bound = union.bound(self._most_tokens)
        new = [
            child
            for node in nodes
            for child in union.children(node)
            if union.prob(child) >= self._least
            and union.prob(child) > bound
            and 0 <= union.token(child) < self._vocab_size
        ]
        return sorted(new, key=union.prob, reverse=True)[: self._width]
