"""Several drafts for one text as one tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft, Origin, Source
from agentspec.engine.drafters.joint_chance import JointChance, Opinions

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
    """A tree of the nodes of all drafts that were added, each of them once.

    Source and origin of a node are those of the first draft with it. A drafter's first estimate of it counts.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._probs: list[float] = []  # by rate()
        self._sources: list[Source] = []
        self._origins: list[int] = []
        self._trees, self._model = _Claims(), _Claims()
        self._match_length = 0
        self._places: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, draft: Draft, below: int = -1) -> list[int]:
        """Add a draft of the trees, or of the model.

        Args:
            draft: its tokens and their parents.
            below: the node that the draft continues; -1 = the text.

        Returns:
            The node of each token.
        """
        nodes: list[int] = []
        claims = self._model if draft.source is Source.MODEL else self._trees
        self._match_length = max(self._match_length, draft.match_length)
        origins = [Origin.LOCAL] * len(draft) if draft.origins is None else draft.origins.tolist()
        probs = draft.probs.tolist()
        for token, parent, prob, origin in zip(
            draft.token_ids.tolist(), draft.parents.tolist(), probs, origins, strict=True
        ):
            above = nodes[parent] if parent >= 0 else below
            node = self._node(above, token, draft.source, origin)
            share = prob / max(prob, probs[parent] if parent >= 0 else 1.0, _LEAST)
            claims.add(node, above, max(share, _LEAST))
            nodes.append(node)
        return nodes

    def rate(self, chance: JointChance) -> None:
        """Estimate all nodes. The estimates of a node's children add up to its own at most."""
        chances = [chance(self._opinions(node)) for node in range(len(self._tokens))]
        sums: defaultdict[int, float] = defaultdict(float)
        for parent, one in zip(self._parents, chances, strict=True):
            sums[parent] += one
        self._probs = []
        for parent, one in zip(self._parents, chances, strict=True):
            above = self._probs[parent] if parent >= 0 else 1.0
            self._probs.append(above * one / max(1.0, sums[parent]))

    def likeliest_path(self) -> list[int]:
        """Return the nodes from the text on that are each the likeliest behind the one before."""
        best: dict[int, int] = {}
        for node, parent in enumerate(self._parents):
            if parent not in best or self._probs[node] > self._probs[best[parent]]:
                best[parent] = node
        path: list[int] = []
        while (node := best.get(path[-1] if path else -1, -1)) >= 0:
            path.append(node)
        return path

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
            node = self._places.get((path[-1] if path else -1, token))
            if node is None:
                break
            path.append(node)
        return path

    def outcomes(self, token_ids: Sequence[int]) -> Iterator[tuple[Opinions, bool]]:
        """Yield what was said of each node whose outcome the tokens show, and whether it was accepted."""
        accepted = {-1, *self.accepted(token_ids)}
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
        return node

    def _opinions(self, node: int) -> Opinions:
        parent = self._parents[node]
        return Opinions(
            self._trees.of(node), self._model.of(node), self._trees.rest(parent), self._model.rest(parent)
        )
