"""A naive suffix index: dictionaries of every substring."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Context = tuple[int, ...]


@dataclass
class NaiveIndex:
    """Counts every string of at most ``depth`` tokens and evaluates Algorithm 1 by brute force.

    The best of continuations with the same count is the one appended last. After a removal takes occurrences
    from the best one, the highest count is the best, then the smaller token id.
    """

    depth: int
    sequences: dict[int, list[int]] = field(default_factory=dict)
    children: dict[Context, dict[int, int]] = field(default_factory=dict)
    best: dict[Context, int] = field(default_factory=dict)

    def append(self, sequence: int, tokens: list[int]) -> None:
        text = self.sequences.setdefault(sequence, [])
        for token in tokens:
            tail = tuple(text[-(self.depth - 1) :])
            text.append(token)
            for start in range(len(tail) + 1):
                counts = self.children.setdefault(tail[start:], {})
                counts[token] = counts.get(token, 0) + 1
                if counts[token] >= counts[self.best.setdefault(tail[start:], token)]:
                    self.best[tail[start:]] = token

    def remove(self, sequence: int) -> None:
        text = self.sequences.pop(sequence, [])
        touched = set()
        for end, token in enumerate(text):
            tail = tuple(text[max(0, end - self.depth + 1) : end])
            for start in range(len(tail) + 1):
                context = tail[start:]
                self.children[context][token] -= 1
                if not self.children[context][token]:
                    del self.children[context][token]
                if self.best[context] == token:
                    touched.add(context)
        for context in touched:
            counts = self.children[context]
            if counts:
                self.best[context] = min(counts, key=lambda token: (-counts[token], token))
            else:
                del self.best[context], self.children[context]

    def count(self, tokens: Context) -> int:
        return self.children.get(tokens[:-1], {}).get(tokens[-1], 0)

    def next_shares(self, context: Context, doubt: float) -> dict[int, float]:
        """Return C(N) of every continuation of the last depth - 1 tokens of the context."""
        counts = self.children.get(context[-(self.depth - 1) :], {})
        total = sum(counts.values()) + doubt / len(context)
        return {token: count / total for token, count in counts.items()}

    def draft(
        self,
        context: Context,
        *,
        is_tree: bool,
        max_tokens: int,
        alpha: float,
        min_match: int,
        min_prob: float,
        doubt: float = 0.0,
    ):
        """Return (score, match length, token ids) of the best draft over all match lengths."""
        best = (0.0, 0, [])
        for match in range(min(len(context), self.depth - 1), min_match - 1, -1):
            limit = min(math.floor(alpha * match), max_tokens)
            expand = self.expand_tree if is_tree else self.expand_chain
            tokens, probs = expand(context[-match:], limit, min_prob, doubt)
            score = 0.0
            for prob in probs:
                score += prob
            if score > best[0]:
                best = (score, match, tokens)
        return best

    def expand_chain(
        self, context: Context, limit: int, min_prob: float, doubt: float
    ) -> tuple[list[int], list[float]]:
        tokens: list[int] = []
        probs: list[float] = []
        prob = 1.0
        while len(tokens) < limit:
            path = context + tuple(tokens)
            window = path[-(self.depth - 1) :]
            shares = self.next_shares(path, doubt)
            if not shares:
                break
            prob *= shares[self.best[window]]
            if prob < min_prob:
                break
            tokens.append(self.best[window])
            probs.append(prob)
        return tokens, probs

    def expand_tree(
        self, context: Context, limit: int, min_prob: float, doubt: float
    ) -> tuple[list[int], list[float]]:
        leaves = [(share, context, token) for token, share in self.next_shares(context, doubt).items()]
        tokens: list[int] = []
        probs: list[float] = []
        while len(tokens) < limit:
            leaves = [leaf for leaf in leaves if leaf[0] >= min_prob]
            if not leaves:
                break
            prob, path, token = leaves.pop(leaves.index(max(leaves, key=lambda leaf: leaf[0])))
            tokens.append(token)
            probs.append(prob)
            path = (*path, token)
            shares = self.next_shares(path, doubt)
            leaves += [(prob * share, path, after) for after, share in shares.items()]
        return tokens, probs
