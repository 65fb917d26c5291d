"""ANPD (arXiv 2404.08698): the likeliest continuation by the n-grams of the request's own text."""

from __future__ import annotations

from collections import Counter

import numpy as np

from agentspec.draft import Draft
from agentspec.forest import Tokens
from agentspec.replay.calls import Call
from agentspec.replay.drafter import chain

Context = tuple[int, ...]


class AdaptiveNgrams:
    """Counts of what followed each n-gram of a text, which grow with it (section 3.1).

    Each draft token is the most frequent one after the longest context that occurred before, of ``most - 1``
    tokens down to one (the paper's multi-level n-grams). Of equally frequent ones it is the first seen. The
    draft ends at a context of which no part occurred. O(most) per token of the text, and per draft token.
    """

    def __init__(self, num_draft: int, most: int = 5) -> None:
        self._num_draft = num_draft
        self._lengths = range(most - 1, 0, -1)
        self._texts: dict[str, list[int]] = {}
        self._counts: dict[str, dict[Context, Counter[int]]] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call. The text is initially the prompt."""
        self._texts[name], self._counts[name] = [], {}
        self._extend(name, call.prompt.tolist())

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Draft token by token."""
        self._extend(name, accepted.tolist())
        counts, recent = self._counts[name], self._texts[name][-self._lengths[0] :]
        drafted: list[int] = []
        matched = 0
        while len(drafted) < self._num_draft:
            length = next((n for n in self._lengths if n <= len(recent) and tuple(recent[-n:]) in counts), 0)
            if not length:
                break
            matched = matched or length
            drafted.append(counts[tuple(recent[-length:])].most_common(1)[0][0])
            recent.append(drafted[-1])
        return chain(np.array(drafted, np.int32), matched)

    def finish(self, name: str, accepted: Tokens) -> None:
        """Forget the call: there is nothing but its own text."""
        del self._texts[name], self._counts[name]

    def _extend(self, name: str, tokens: list[int]) -> None:
        text, counts = self._texts[name], self._counts[name]
        for token in tokens:
            for length in self._lengths:
                if length <= len(text):
                    counts.setdefault(tuple(text[-length:]), Counter())[token] += 1
            text.append(token)
