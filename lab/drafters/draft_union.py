"""Several drafts for one text as one tree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft, Origin, Source
from lab.drafters.joint_chance import JointChance, Opinions

TEXT = -1  # in place of a node: the text before the draft
_LEAST = 1e-30  # chance of a drafted token


class _Claims:
    """The chances that one drafter gives to nodes, if their parents are accepted."""

    def __init__(self) -> None:
        self._of_nodes: dict[int, float] = {}
        self._of_children: defaultdict[int, float] = defaultdict(float)

    def add(self, node: int, parent: int, chance: float) -> None:
        """Add a node's chance, if it has none."""
        if node not in self._of_nodes:
            self._of_nodes[node] = chance
            self._of_children[parent] += chance

    def of(self, node: int) -> float:
        """Return the chance of a node; 0 = the drafter does not draft it."""
        return self._of_nodes.get(node, 0.0)

    def rest(self, parent: int) -> float:
        """Return the chance of all tokens behind a node that are not drafted."""
        return max(0.0, 1 - self._of_children.get(parent, 0.0))


class DraftUnion:
    """A tree of all tokens that the trees or the model draft, each of them once.

    Source and origin of a node are those of the first draft with it. A drafter's first estimate of it counts.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._probs: list[float] = []  # 0 until they are estimated
        self._sources: list[Source] = []
        self._origins: list[int] = []
        self._trees, self._model = _Claims(), _Claims()
        self._match_length = 0
        self._places: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self._children: defaultdict[int, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, draft: Draft, below: int = TEXT) -> list[int]:
        """Add a draft of the trees.

        Args:
            draft: its tokens and their parents.
            below: the node that the draft continues, or ``TEXT``.

        Returns:
            The node of each token.
        """
        nodes: list[int] = []
        self._match_length = max(self._match_length, draft.match_length)
        origins = [Origin.LOCAL] * len(draft) if draft.origins is None else draft.origins.tolist()
        probs = draft.probs.tolist()
        for token, parent, prob, origin in zip(
            draft.token_ids.tolist(), draft.parents.tolist(), probs, origins, strict=True
        ):
            above = nodes[parent] if parent >= 0 else below
            node = self._node(above, token, draft.source, origin)
            share = prob / max(prob, probs[parent] if parent >= 0 else 1.0, _LEAST)
            self._trees.add(node, above, max(share, _LEAST))
            nodes.append(node)
        return nodes

    def claim(self, parent: int, token: int, chance: float) -> None:
        """Add the chance that the model gives to a token behind a node."""
        self._model.add(self._node(parent, token, Source.MODEL, Origin.LOCAL), parent, max(chance, _LEAST))

    def rate(self, chance: JointChance) -> None:
        """Estimate all nodes."""
        for parent, children in self._children.items():  # a parent's own parent has been a key before
            for node, prob in zip(children, self._estimates(parent, chance), strict=True):
                self._probs[node] = prob

    def rate_behind(self, parent: int, chance: JointChance) -> None:
        """Estimate the children of a node anew, and all that is new behind them.

        Earlier estimates behind a child keep their chance, if the child is accepted.
        """
        parents = [parent]
        while parents:
            parent = parents.pop()
            for node, prob in zip(self.children(parent), self._estimates(parent, chance), strict=True):
                before, self._probs[node] = self._probs[node], prob
                if before:
                    self._scale_behind(node, prob / before)
                else:
                    parents.append(node)

    def prob(self, node: int) -> float:
        """Return the estimate of a node; 1 for the text."""
        return 1.0 if node == TEXT else self._probs[node]

    def parent(self, node: int) -> int:
        """Return the node before a node, or ``TEXT``."""
        return self._parents[node]

    def children(self, node: int) -> Sequence[int]:
        """Return the nodes right behind a node."""
        return self._children.get(node, ())

    def token(self, node: int) -> int:
        """Return a node's token."""
        return self._tokens[node]

    def is_continued(self, node: int) -> bool:
        """Return True if the trees draft tokens behind a node."""
        return self._trees.rest(node) < 1

    def bound(self, most_tokens: int) -> float:
        """Return the estimate that a node exceeds if it is among the likeliest ``most_tokens``."""
        if len(self._probs) < most_tokens:
            return 0.0
        return sorted(self._probs, reverse=True)[most_tokens - 1] if most_tokens else math.inf

    def likeliest_path(self) -> list[int]:
        """Return the nodes from the text on that are each the likeliest behind the one before."""
        path: list[int] = []
        while children := self.children(path[-1] if path else TEXT):
            path.append(max(children, key=self.prob))
        return path

    def tokens_to(self, node: int) -> NDArray[np.int32]:
        """Return the tokens from the text to a node, int32."""
        path: list[int] = []
        while node != TEXT:
            path.append(node)
            node = self._parents[node]
        return self.tokens_of(path[::-1])

    def tokens_of(self, nodes: Sequence[int]) -> NDArray[np.int32]:
        """Return the tokens of some nodes, int32."""
        return np.array([self._tokens[node] for node in nodes], np.int32)

    def score(self) -> float:
        """Return the expected number of accepted tokens if all nodes are drafted."""
        return sum(self._probs)

    def accepted(self, token_ids: Sequence[int]) -> list[int]:
        """Return the nodes on the path of the tokens that followed the text."""
        path: list[int] = []
        for token in token_ids:
            node = self._places.get((path[-1] if path else TEXT, token))
            if node is None:
                break
            path.append(node)
        return path

    def outcomes(self, token_ids: Sequence[int]) -> Iterator[tuple[Opinions, bool]]:
        """Yield the opinions on each node with an outcome in the tokens, and True if it was accepted."""
        accepted = {TEXT, *self.accepted(token_ids)}
        for node, (parent, depth) in enumerate(zip(self._parents, self._depths, strict=True)):
            if parent in accepted and depth <= len(token_ids):
                yield self._opinions(node), node in accepted

    def draft(self, most_tokens: int, least_prob: float, *, is_tree: bool) -> Draft:
        """Return the likeliest nodes as a tree, or those of the likeliest path.

        Its source is the model as soon as it has a token that only the model drafted.
        """
        nodes = range(len(self._tokens)) if is_tree else self.likeliest_path()
        likely = [node for node in nodes if self._probs[node] >= least_prob]
        order = sorted(likely, key=lambda node: (-self._probs[node], node))[:most_tokens]
        places = {node: place for place, node in enumerate(order)}
        probs = np.array([self._probs[node] for node in order], np.float32)
        sources = [self._sources[node] for node in order]
        return Draft(
            self.tokens_of(order),
            np.array([places.get(self._parents[node], -1) for node in order], np.int32),
            probs,
            float(probs.sum()),
            self._match_length if order else 0,
            Source.MODEL if Source.MODEL in sources else sources[0] if order else Source.NONE,
            np.array([self._origins[node] for node in order], np.uint8),
        )

    def _node(self, parent: int, token: int, source: Source, origin: int) -> int:
        node = self._places.setdefault((parent, token), len(self._tokens))
        if node == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
            self._depths.append(1 + (self._depths[parent] if parent >= 0 else 0))
            self._sources.append(source)
            self._origins.append(origin)
            self._probs.append(0.0)
            self._children[parent].append(node)
        return node

    def _scale_behind(self, node: int, share: float) -> None:
        behind = [*self.children(node)]
        while behind:
            other = behind.pop()
            self._probs[other] *= share
            behind += self.children(other)

    def _estimates(self, parent: int, chance: JointChance) -> list[float]:
        """Return estimates of a node's children, which add up to its own at most."""
        chances = [chance(self._opinions(node)) for node in self.children(parent)]
        share = self.prob(parent) / max(1.0, sum(chances))
        return [share * one for one in chances]

    def _opinions(self, node: int) -> Opinions:
        parent = self._parents[node]
        return Opinions(
            self._trees.of(node), self._model.of(node), self._trees.rest(parent), self._model.rest(parent)
        )
