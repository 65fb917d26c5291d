"""Token Recycling (arXiv 2408.08696): a table of candidates for the token after each token.

The candidates fill a draft tree of a fixed shape. A record does not contain the model's other likely tokens,
so this is an approximation. The last eight different tokens that followed a token stand in for the model's
eight best tokens.
"""

from __future__ import annotations

from agentspec.draft import Draft, Source
from agentspec.forest import Tokens
from agentspec.replay.calls import Call
from lab.drafters.static_tree import fill, path_shape, tree_shape

NUM_CANDIDATES = 8  # the paper's k


class TokenRecycling:
    """One table of candidates for all calls, built from prompts and outputs. The most recent ranks first.

    The shape is a tree or, in chain mode, a path of first candidates. The paper has no chain mode. Both
    shapes have ``num_draft`` nodes. If a token has too few candidates, the missing nodes and their
    descendants are left out. The paper's tree is always full.
    """

    def __init__(self, num_draft: int, *, is_tree: bool) -> None:
        self._shape = tree_shape(num_draft, NUM_CANDIDATES) if is_tree else path_shape(num_draft)
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
        if last is None:
            return Draft()
        return fill(self._shape, last, lambda token: self._candidates.get(token, ()), Source.TENANT)

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
