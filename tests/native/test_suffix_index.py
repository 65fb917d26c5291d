"""The binding of the suffix index, for benchmarks and tools.

In C++ it is compared with brute force (``cpp/naive_index.cpp``, ``test_random_operations``, the fuzz target).
"""

from __future__ import annotations

import numpy as np
import pytest

from agentspec._native import SuffixIndex
from agentspec.errors import ConfigError, TokenError, UnknownRequestError


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def filled(*sequences: list[int], depth: int = 8) -> SuffixIndex:
    index = SuffixIndex(depth)
    for tokens in sequences:
        sequence = index.open_sequence()
        index.append(sequence, ids(*tokens))
        index.close_sequence(sequence)
    return index


def test_a_long_run_of_one_token_stays_linear():
    index = filled([5] * 3000, depth=64)
    assert index.num_states <= 65
    assert index.count(ids(*[5] * 64)) == 3000 - 63
    index.check_integrity()


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
