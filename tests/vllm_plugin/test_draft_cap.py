from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.vllm_plugin.draft_cap import DraftCap, shared

GIB = 1 << 30
QWEN = 151_936  # words of the vocabulary

rows = st.lists(st.tuples(st.integers(0, 128), st.integers(1, 5000)), max_size=64)


def test_the_limits_of_a_server() -> None:
    # 26 bytes a word and draft token, 48 with penalties: 1 GiB holds 271 and, less the trial run's share, 147
    cap = DraftCap.of_v1(64, 8192, QWEN, GIB)
    assert cap.most_tokens == 64 + GIB // (26 * QWEN) == 335
    assert cap.most_penalized_tokens == (GIB // QWEN + 26 * 64) // 48 == 181
    # the trial run already has more draft tokens than their penalties have room for
    assert DraftCap.of_v1(1024, 8192, QWEN, GIB).most_penalized_tokens == GIB // (22 * QWEN) == 321
    assert DraftCap.of_v1(1024, 256, QWEN, GIB).most_tokens == 256 + 271


@given(st.integers(1, 2048), st.integers(1000, 300_000), st.integers(0, 1 << 34))
def test_the_limits_fit_into_the_memory(max_num_seqs: int, vocab_size: int, spare: int) -> None:
    def beyond(drafts: int, penalty_bytes: int) -> int:
        return vocab_size * (26 * max(0, drafts - max_num_seqs) + penalty_bytes * drafts)

    cap = DraftCap.of_v1(max_num_seqs, 1 << 20, vocab_size, spare)
    assert beyond(cap.most_tokens, 0) <= spare < beyond(cap.most_tokens + 2, 0)
    assert beyond(cap.most_penalized_tokens, 22) <= spare < beyond(cap.most_penalized_tokens + 2, 22)


def test_what_fits_is_left_as_it_is() -> None:
    cap = DraftCap(100, 100, 20_000)
    assert cap.allowed([32, 0, 7, 61]) == [32, 0, 7, 61]
    assert cap.allowed([5, 5], [100, 300]) == [5, 5]
    assert cap.allowed([]) == cap.allowed([], []) == []


def test_the_longest_drafts_are_cut_to_a_common_length() -> None:
    cap = DraftCap(most_tokens=20, most_penalized_tokens=9)
    assert cap.allowed([32, 3, 0, 9, 1]) == [8, 3, 0, 8, 1]
    assert cap.allowed([32, 3, 0, 9, 1], [0] * 5) == [2, 2, 0, 2, 1]
    assert cap.allowed([5] * 30) == [0] * 30  # no equal share fits


def test_long_outputs_cost_more_in_a_batch_with_penalties() -> None:
    cap = DraftCap(10_000, 10_000, 20_000)
    # a draft token costs the row's output and a sixteenth of the longest
    assert cap.allowed([32] * 8, [2000] * 8) == [1] * 8
    assert cap.allowed([32], [2000]) == [9]
    assert cap.allowed([32], [40_000]) == [0]
    assert cap.allowed([32, 32], [-5, 0]) == [32, 32]  # a prompt that is not fully read
    short, long = cap.allowed([16, 16], [100, 8000])
    assert (short, long) == (16, 1)


@given(rows, st.integers(0, 200_000))
def test_no_more_than_allowed_and_no_less_than_an_equal_share(rows: list[tuple[int, int]], most: int) -> None:
    lengths, costs = [length for length, _ in rows], [cost for _, cost in rows]
    kept = shared(lengths, costs, most)
    spent = [number * cost for number, cost in zip(kept, costs, strict=True)]
    assert sum(spent) <= most
    assert all(0 <= number <= length for number, length in zip(kept, lengths, strict=True))
    cut = [row for row in range(len(rows)) if kept[row] < lengths[row]]
    if not cut:
        return
    # one more token for every row that was cut, at the least share that buys one, is too much
    share = min((kept[row] + 1) * costs[row] for row in cut)
    more = [min(length, share // cost) * cost for length, cost in rows]
    assert sum(more) > most
    assert all(one <= share for row, one in enumerate(spent) if row in cut)


@given(rows)
def test_with_equal_costs_no_draft_is_cut_below_a_longer_one(rows: list[tuple[int, int]]) -> None:
    lengths = [length for length, _ in rows]
    kept = shared(lengths, [1] * len(rows), sum(lengths) // 2)
    limit = max(kept, default=0)
    assert kept == [min(length, limit) for length in lengths]


@pytest.mark.parametrize("most", [0, 1])
def test_nothing_is_allowed_where_nothing_fits(most: int) -> None:
    assert shared([4, 4], [2, 3], most) == [0, 0]
