"""Several drafts for one text as one tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft, Origin, Source


class DraftUnion:
    """A tree of the nodes of all drafts that were added, each of them once.

    A node has the highest estimate that a draft gives it, but none above its parent's. Source and origin are
    those of the first draft with the node.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._probs: list[float] = []
        self._sources: list[Source] = []
        self._origins: list[int] = []
        self._match_length = 0
        self._places: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, draft: Draft, probs: NDArray[np.float32], below: int = -1) -> list[int]:
        """Add a draft.

        Args:
            draft: its tokens and their parents.
            probs: ``[tokens]``, the chance that each is accepted.
            below: the node that the draft continues; -1 = the text.

        Returns:
            The node of each token.
        """
        nodes: list[int] = []
        self._match_length = max(self._match_length, draft.match_length)
        origins = [Origin.LOCAL] * len(draft) if draft.origins is None else draft.origins.tolist()
        for token, parent, prob, origin in zip(
            draft.token_ids.tolist(), draft.parents.tolist(), probs.tolist(), origins, strict=True
        ):
            above = nodes[parent] if parent >= 0 else below
            nodes.append(self._add(above, token, prob, draft.source, origin))
        return nodes

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

    def accepted(self, token_ids: Sequence[int]) -> list[int]:
        """Return the nodes on the path of the tokens that followed the text."""
        path: list[int] = []
        for token in token_ids:
            node = self._places.get((path[-1] if path else -1, token))
            if node is None:
                break
            path.append(node)
        return path

    def depth(self, node: int) -> int:
        """Return the tokens from the text to a node, itself included."""
        return self._depths[node]

    def prob(self, node: int) -> float:
        """Return the estimate of a node."""
        return self._probs[node]

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

    def _add(self, parent: int, token: int, prob: float, source: Source, origin: int) -> int:
        if parent >= 0:
            prob = min(prob, self._probs[parent])
        node = self._places.setdefault((parent, token), len(self._tokens))
        if node == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
            self._depths.append(1 + (self._depths[parent] if parent >= 0 else 0))
            self._probs.append(prob)
            self._sources.append(source)
            self._origins.append(origin)
        self._probs[node] = max(self._probs[node], prob)
        return node
