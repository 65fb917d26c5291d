"""The suffix index compared with the naive one, and its contracts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agentspec._native import SuffixIndex
from agentspec.errors import ConfigError, TokenError, UnknownRequestError
from tests.native.support.naive_index import NaiveIndex


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


class Pair:
    """Both indices under the same operations, compared after each."""

    def __init__(self, rng: random.Random, depth: int, alphabet: int) -> None:
        self.rng = rng
        self.depth = depth
        self.alphabet = alphabet
        self.index = SuffixIndex(depth)
        self.naive = NaiveIndex(depth)
        self.live: list[int] = []
        self.finished: dict[tuple[int, ...], list[int]] = {}  # oldest first; equal outputs share one entry

    def tokens(self, most: int) -> list[int]:
        """Return random skewed tokens, or a stretch of some sequence, so that repetition is common."""
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
                text = tuple(self.naive.sequences[done])
                self.finished[text] = [*self.finished.pop(text, []), done]
        elif roll < 0.135 and self.finished:
            self.evict()
        elif roll < 0.15:
            self.remove()
        elif roll < 0.16:
            self.enforce()
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

    def remove(self) -> None:
        sequence = self.live.pop(self.rng.randrange(len(self.live)))
        self.index.remove_sequence(sequence)
        self.naive.remove(sequence)

    def evict(self, num_gone: int = 0) -> None:
        """Evict the oldest output, of which ``num_gone`` tokens were evicted before."""
        text = next(iter(self.finished))
        sequences = self.finished.pop(text)
        num_left = len(text) * len(sequences) - num_gone
        assert self.index.evict(num_left) == num_left
        for sequence in sequences:
            self.naive.remove(sequence)

    def enforce(self) -> None:
        """Close all holes, evict a little, and remove evicted or cut sequences from both indices."""
        self.index.enforce(self.index.memory_bytes - 1)
        overhead = self.index.memory_bytes - self.index.used_bytes
        self.index.enforce(overhead + int(self.index.used_bytes * self.rng.uniform(0.8, 1.0)))
        for sequence in self.live[:]:
            if not self.index.append(sequence, ids()):  # no longer learned
                self.live.remove(sequence)
                self.index.remove_sequence(sequence)
                self.naive.remove(sequence)
        while num_gone := sum(map(len, self.naive.sequences.values())) - self.index.num_tokens:
            text, sequences = next(iter(self.finished.items()))
            self.evict(min(num_gone, len(text) * len(sequences)))

    def compare_count(self) -> None:
        tokens = self.tokens(self.depth)[: self.depth]
        assert self.index.count(ids(*tokens)) == self.naive.count(tuple(tokens))

    def compare_draft(self, is_tree: bool) -> None:
        rule = {
            "max_tokens": self.rng.choice((0, 1, 3, 8, 12)),
            "alpha": self.rng.choice((0.5, 1.0, 2.0, 4.0)),
            "min_match": self.rng.choice((1, 1, 1, 2, 4)),
            "min_prob": self.rng.choice((0.0, 0.1, 0.1, 0.3)),
            "doubt": self.rng.choice((0.0, 0.0, 0.5, 2.0)),
        }
        context = self.tokens(2 * self.depth)
        if self.live and self.rng.random() < 0.5:  # the end of a live sequence
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
        for i, token in enumerate(token_ids):  # each probability is D(N)
            path = [int(token)]
            parent = i
            while (parent := int(parents[parent])) >= 0:
                path.append(int(token_ids[parent]))
            before = tuple(context[len(context) - match :] + path[:0:-1])
            above = probs[parents[i]] if parents[i] >= 0 else 1.0
            assert probs[i] == above * self.naive.next_shares(before, rule["doubt"])[int(token)]


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
            pair.evict() if pair.finished else pair.remove()
        pair.operate()
        if done % check_every == 0:
            pair.index.check_integrity()
    for sequence in pair.live:
        pair.index.remove_sequence(sequence)
    pair.index.evict(pair.index.num_tokens)
    pair.index.check_integrity()
    assert (pair.index.num_tokens, pair.index.num_states) == (0, 1)


# ---- contracts ----


def filled(*sequences: list[int], depth: int = 8) -> SuffixIndex:
    index = SuffixIndex(depth)
    for tokens in sequences:
        sequence = index.open_sequence()
        index.append(sequence, ids(*tokens))
        index.close_sequence(sequence)
    return index


def test_counts_do_not_join_sequences():
    index = filled([1, 2], [3, 1, 2])
    assert [index.count(ids(*tokens)) for tokens in ([1, 2], [2, 3], [2], [9])] == [2, 0, 2, 0]
    assert index.count(ids()) == index.num_tokens == 5


def test_a_long_run_of_one_token_stays_linear():
    index = filled([5] * 3000, depth=64)
    assert index.num_states <= 65
    assert index.count(ids(*[5] * 64)) == 3000 - 63
    index.check_integrity()


def test_a_draft_goes_on_beyond_the_depth():
    index = filled(list(range(100)), depth=4)
    token_ids, parents, probs, score, match = index.draft_chain(ids(10, 11, 12), max_tokens=50, alpha=20.0)
    assert token_ids.tolist() == list(range(13, 63))
    assert parents.tolist() == list(range(-1, 49))
    assert (probs.tolist(), score, match) == ([1.0] * 50, 50.0, 3)


def test_the_latest_of_equal_continuations_wins_until_it_is_removed():
    index = SuffixIndex(4)
    sequences = []
    for follower in (7, 9, 8):
        sequences.append(index.open_sequence())
        index.append(sequences[-1], ids(1, follower))
    best = [index.draft_chain(ids(1))[0].tolist()]
    index.remove_sequence(sequences.pop())
    best.append(index.draft_chain(ids(1))[0].tolist())
    assert best == [[8], [7]]  # 7 and 9 were seen once each: the smaller id wins


def test_wide_states_keep_all_their_edges():
    """Grow one context to a thousand continuations and back, through every size of edge block."""
    index = SuffixIndex(3)
    sequences = {}
    for token in range(1000):
        sequences[token] = index.open_sequence()
        index.append(sequences[token], ids(5, token))
    index.append(sequences[321], ids(5, 321))
    index.check_integrity()
    assert index.draft_chain(ids(5), min_prob=0.0, max_tokens=1)[0].tolist() == [321]
    for token in range(999, -1, -1):
        index.remove_sequence(sequences[token])
        assert index.count(ids(5, token)) == 0
        if token % 100 == 0:
            index.check_integrity()
    assert (index.num_states, index.num_tokens) == (1, 0)


def test_removal_is_reused_or_returned():
    rng = np.random.default_rng(0)
    index = SuffixIndex(16)
    peak = 0
    for turn in range(300):
        sequence = index.open_sequence()
        index.append(sequence, rng.integers(0, 50, 200).astype(np.int32))
        index.close_sequence(sequence)
        if turn >= 20:
            assert index.evict(200) == 200
        if turn == 40:
            peak = index.memory_bytes
    assert index.memory_bytes < 1.4 * peak
    index.check_integrity()


def test_equal_outputs_are_one_as_young_as_the_last_of_them():
    index = filled([1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3])
    assert (index.num_sequences, index.num_tokens) == (4, 11)
    assert index.evict(1) == 2
    assert (index.count(ids(4)), index.count(ids(1, 2, 3))) == (0, 3)
    assert index.evict(1) == 9
    assert (index.num_sequences, index.num_tokens, index.num_states) == (0, 0, 1)


@pytest.mark.parametrize("limit", [20_000, 100_000, 1_000_000])
def test_the_budget_holds_and_the_oldest_goes_first(limit):
    rng = np.random.default_rng(1)
    index = SuffixIndex(32, limit)
    outputs = rng.integers(0, 3000, (3 * limit // 8000, 200)).astype(np.int32)
    for output in outputs:
        sequence = index.open_sequence()
        index.append(sequence, output)
        assert index.memory_bytes <= limit
        index.close_sequence(sequence)
    known = [index.count(output[:32]) for output in outputs]
    assert known == sorted(known)
    assert known[-1]
    assert not known[0]
    assert index.used_bytes > 0.85 * limit - 12_000  # one sequence takes up to this much
    index.check_integrity()


def test_live_sequences_beyond_the_budget_stop_learning_the_longest_first():
    index = SuffixIndex(16, 16_000)
    short, long = index.open_sequence(), index.open_sequence()
    assert index.append(short, ids(*range(20)))
    is_learned = [index.append(long, ids(*range(100 * i, 100 * i + 50))) for i in range(20)]
    assert is_learned == sorted(is_learned, reverse=True)
    assert not is_learned[-1]
    assert 20 <= index.num_tokens < 20 + 50 * 20  # a part of the long one stays, and is evicted first
    assert index.num_sequences == 2
    assert index.memory_bytes <= 16_000
    index.remove_sequence(long)
    assert (index.num_tokens, index.num_sequences, index.count(ids(5))) == (20, 1, 1)
    index.check_integrity()


def test_wrong_calls_are_named_and_change_nothing():
    index = filled([1, 2, 3])
    with pytest.raises(UnknownRequestError, match="99"):
        index.append(99, ids(1))
    with pytest.raises(UnknownRequestError, match="99"):
        index.remove_sequence(99)
    live = index.open_sequence()
    with pytest.raises(TokenError, match="-4"):
        index.append(live, ids(1, -4))
    with pytest.raises(TypeError):
        index.append(live, np.array([1.5]))
    with pytest.raises(ValueError, match="one-dimensional"):
        index.append(live, np.array([[1]], np.int32))
    with pytest.raises(TokenError, match="8 tokens"):
        index.count(ids(*range(9)))
    with pytest.raises(ConfigError, match="depth"):
        SuffixIndex(1)
    for wrong in ({"alpha": 0.0}, {"alpha": np.nan}, {"min_match": 0}, {"min_prob": 1.5}, {"max_tokens": -1}):
        with pytest.raises(ConfigError):
            index.draft_chain(ids(1), **wrong)
    assert index.num_tokens == 3
    index.check_integrity()
