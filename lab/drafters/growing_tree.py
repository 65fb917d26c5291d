"""The dynamic draft tree of EAGLE-2 (arXiv 2406.16858): it grows where the network is confident."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft, Source


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Nodes whose continuations are wanted.

    Attributes:
        token_ids: int32 ``[n]``.
        rows: the place of each node's parent among the nodes of the level before.
        parents: int32 ``[nodes of all levels]``: the place of each one's parent among them, -1 = none.
    """

    token_ids: NDArray[np.int32]
    rows: list[int]
    parents: NDArray[np.int32]


class GrowingTree:
    """The draft of one request while a network computes it, level by level.

    Each level, the ``width`` likeliest new nodes are expanded (the paper's expansion phase). In the end the
    likeliest of all nodes are drafted (its reranking phase). A node's chance is the product of the network's
    chances on its path, so a parent is never behind its child.

    Args:
        width: nodes expanded in a level; 1 drafts a chain.
        most_tokens: most tokens drafted.
        least_chance: less likely nodes are neither expanded nor drafted.
    """

    def __init__(self, width: int, most_tokens: int, least_chance: float) -> None:
        self._width = width
        self._most_tokens = most_tokens
        self._least = math.log(max(least_chance, 1e-9))
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._logs: list[float] = []  # of the nodes' chances
        self._expanded: list[int] = []  # nodes, in the order of their computation
        self._level: list[int] = []  # of these, the last level's
        self._num_grown = 0  # nodes that were there before the last level

    @property
    def num_candidates(self) -> int:
        """Continuations that are wanted of each row."""
        return self._width

    def add(self, token_ids: NDArray[np.int32], log_probs: NDArray[np.float32]) -> None:
        """Add the continuations of each node expanded last; at first, of the last accepted token.

        Args:
            token_ids: int32 ``[nodes, width]``, the likeliest first.
            log_probs: float32 ``[nodes, width]``.
        """
        self._num_grown = len(self._tokens)
        for parent, tokens, logs in zip(
            self._level or [-1], token_ids.tolist(), log_probs.tolist(), strict=True
        ):
            above = self._logs[parent] if parent >= 0 else 0.0
            for token, log in zip(tokens, logs, strict=True):
                if above + log >= self._least:
                    self._tokens.append(token)
                    self._parents.append(parent)
                    self._logs.append(above + log)

    def expand(self) -> Level | None:
        """Return the new nodes to compute next; None if the tree is complete."""
        bound = self._bound()
        new = range(self._num_grown, len(self._tokens))
        likely = sorted(
            (node for node in new if self._logs[node] > bound), key=lambda node: -self._logs[node]
        )
        before, self._level = self._level, likely[: self._width]
        self._expanded += self._level
        if not self._level:
            return None
        rows = [before.index(self._parents[node]) if before else 0 for node in self._level]
        places = {node: place for place, node in enumerate(self._expanded)}
        parents = [places.get(self._parents[node], -1) for node in self._expanded]
        return Level(self._tokens_of(self._level), rows, np.array(parents, np.int32))

    def draft(self) -> Draft:
        """Return the likeliest nodes."""
        order = sorted(range(len(self._tokens)), key=lambda node: -self._logs[node])[: self._most_tokens]
        places = {node: place for place, node in enumerate(order)}
        probs = np.exp(np.array([self._logs[node] for node in order], np.float32))
        return Draft(
            self._tokens_of(order),
            np.array([places.get(self._parents[node], -1) for node in order], np.int32),
            probs,
            float(probs.sum()),
            source=Source.MODEL if order else Source.NONE,
        )

    def _tokens_of(self, nodes: Sequence[int]) -> NDArray[np.int32]:
        return np.array([self._tokens[node] for node in nodes], np.int32)

    def _bound(self) -> float:
        """Return the log chance below which a node would not be drafted any more."""
        if len(self._logs) < self._most_tokens:
            return -math.inf
        if not self._most_tokens:
            return math.inf
        return sorted(self._logs, reverse=True)[self._most_tokens - 1]
