"""The suffix index against the naive one, and its contracts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from naive_index import NaiveIndex

from agentspec._native import SuffixIndex


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


class Pair:
    """The same operations on both indices, compared after each."""

    def __init__(self, rng: random.Random, depth: int, alphabet: int) -> None:
        self.rng = rng
        self.depth = depth
        self.alphabet = alphabet
        self.index = SuffixIndex(depth)
        self.naive = NaiveIndex(depth)
        self.live: list[int] = []
        self.finished: list[int] = []

    def tokens(self, most: int) -> list[int]:
        """Random tokens, skewed, or a stretch of some sequence, so that repetition is common."""
        if self.naive.sequences and self.rng.random() < 0.4:
            text = self.rng.choice(list(self.naive.sequences.values()))
            if text:
                start = self.rng.randrange(len(text))
                return text[start : start + self.rng.randint(1, most)]
        return [int(self.alphabet * self.rng.random() ** 2) for _ in range(self.rng.randint(1, most))]

    def operate(self) -> None:
        roll = self.rng.random()
        if roll < 0.06 or not self.live:
            self.live.append(self.index.open_sequence())
        elif roll < 0.10:
            done = self.live.pop(self.rng.randrange(len(self.live)))
            self.index.close_sequence(done)
            if done in self.naive.sequences:
                self.finished.append(done)
        elif roll < 0.135 and self.finished:
            self.remove(self.finished)
        elif roll < 0.15:
            self.remove(self.live)
        elif roll < 0.60:
            self.append()
        elif roll < 0.75:
            self.compare_count()
        else:
            self.compare_draft(is_tree=roll > 0.92)

    def append(self) -> None:
        sequence = self.rng.choice(self.live)
        tokens = self.tokens(4)
        assert self.index.append(sequence, ids(*tokens))
        self.naive.append(sequence, tokens)

    def remove(self, among: list[int]) -> None:
        sequence = among.pop(self.rng.randrange(len(among)))
        self.index.remove_sequence(sequence)
        self.naive.remove(sequence)

    def compare_count(self) -> None:
        tokens = self.tokens(self.depth)[: self.depth]
        assert self.index.count(ids(*tokens)) == self.naive.count(tuple(tokens))

    def compare_draft(self, is_tree: bool) -> None:
        rule = {
            "max_tokens": self.rng.choice((0, 1, 3, 8, 12)),
            "alpha": self.rng.choice((0.5, 1.0, 2.0, 4.0)),
            "min_match": self.rng.choice((1, 1, 1, 2, 4)),
            "min_prob": self.rng.choice((0.0, 0.1, 0.1, 0.3)),
        }
        context = self.tokens(2 * self.depth)
        if self.live and self.rng.random() < 0.5:  # the tail of a live sequence
            context = self.naive.sequences.get(self.rng.choice(self.live), context)[-2 * self.depth :]
        draft = self.index.draft_tree if is_tree else self.index.draft_chain
        token_ids, parents, probs, score, match = draft(ids(*context), **rule)
        expected = self.naive.draft(tuple(context), is_tree=is_tree, **rule)
        assert (score, match) == expected[:2]
        assert token_ids.dtype == parents.dtype == np.int32
        assert len(token_ids) == len(parents) == len(probs) <= rule["max_tokens"]
        assert all(parents < np.arange(len(parents)))
        if not is_tree:
            assert token_ids.tolist() == expected[2]
            return
        for i, token in enumerate(token_ids):  # each node's probability is the paper's D(N)
            path = [int(token)]
            parent = i
            while (parent := int(parents[parent])) >= 0:
                path.append(int(token_ids[parent]))
            before = tuple(context[len(context) - match :] + path[:0:-1])
            above = probs[parents[i]] if parents[i] >= 0 else 1.0
            assert probs[i] == above * self.naive.next_shares(before)[int(token)]


@pytest.mark.parametrize(
    ("depth", "alphabet", "num_operations", "check_every"),
    [
        (2, 2, 6000, 1),
        (3, 2, 8000, 1),
        (4, 3, 8000, 1),
        (5, 40, 8000, 1),
        (3, 3, 45000, 50),
        (6, 4, 45000, 50),
        (8, 2, 40000, 50),
        (9, 100, 40000, 50),
        (16, 5, 15000, 50),
    ],
)
def test_random_operations_agree_with_the_naive_index(depth, alphabet, num_operations, check_every):
    pair = Pair(random.Random(depth * 1000 + alphabet), depth, alphabet)
    for done in range(num_operations):
        if len(pair.naive.sequences) > 12:
            pair.remove(pair.finished or pair.live)
        pair.operate()
        if done % check_every == 0:
            pair.index.check_integrity()
    for sequence in list(pair.naive.sequences):
        pair.index.remove_sequence(sequence)
    pair.index.check_integrity()
    assert (pair.index.num_tokens, pair.index.num_states) == (0, 1)
