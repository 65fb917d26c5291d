"""Padded groups and single segments attend alike. The GPU's methods are checked on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import (
    CALL_COST,
    AttentionPlan,
    _cheapest_width,
    _CopyWriter,
    _Group,
    _IndexWriter,
    _Solo,
)
from agentspec.engine.model.checkpoint_config import load_config
from agentspec.engine.model.kv_cache import KVCache

TREE = np.array([-1, 0, 1, 0, 3], np.int32)


@pytest.fixture
def cache(llama_checkpoint: Path) -> KVCache:
    cache = KVCache(load_config(llama_checkpoint), 12, 64, torch.float32, "cpu")
    cache.entries.copy_(torch.randn(cache.entries.shape, generator=torch.Generator().manual_seed(0)))
    return cache


def segments(slots: tuple[int, ...]) -> list[Segment]:
    """Return segments of 1 to 5 tokens at different depths. Every other of the longest is a tree."""
    return [
        Segment(slot, 11 * i, np.zeros(1 + i % 5, np.int32), TREE if i % 10 == 4 else None)
        for i, slot in enumerate(slots)
    ]


@pytest.mark.parametrize("slots", [(0, 1, 2, 3, 4), (5, 4, 3, 2, 1), (0, 2, 3, 4, 5), (11, 0, 7, 3, 9)])
@pytest.mark.parametrize("window", [None, 7])
def test_group_equals_each_alone(cache: KVCache, slots: tuple[int, ...], window: int | None) -> None:
    """Compare groups of dense slots, which are read as a range, and of sparse slots, which are gathered."""
    windows = (None, window, window)
    batch = segments(slots)
    first_rows = np.cumsum([0, *map(len, batch)]).tolist()
    queries = torch.randn(1, 4, first_rows[-1], 16, generator=torch.Generator().manual_seed(1))
    group = _Group(list(zip(batch, first_rows, strict=False)), cache, windows)
    for layer in range(3):
        grouped, alone = torch.zeros(2, first_rows[-1], 64)
        group.place(grouped, group.attend(layer, queries))
        for segment, row in zip(batch, first_rows, strict=False):
            solo = _Solo(segment, row, cache, windows)
            solo.place(alone, solo.attend(layer, queries))
        assert float((grouped - alone).abs().max()) < 1e-5


def test_both_writers_write_the_same(cache: KVCache) -> None:
    batch = segments((3, 0, 9, 10, 4))
    num_rows = sum(map(len, batch))
    entries = torch.randn(4, num_rows, 16, generator=torch.Generator().manual_seed(1))
    before = cache.entries.clone()
    _CopyWriter(batch, cache).write(1, entries)
    copied = cache.entries.clone()
    cache.entries.copy_(before)
    _IndexWriter(batch, cache).write(1, entries)
    assert torch.equal(cache.entries, copied)
    assert int((copied != before).sum()) == entries.numel()


def rows(slot: int, length: int, start: int = 20) -> Segment:
    return Segment(slot, start, np.zeros(length, np.int32))


def test_a_long_draft_gets_a_call_of_its_own(cache: KVCache) -> None:
    """Its slot stays in the range of the others, which are not padded to its length."""
    batch = [rows(slot, 40 if slot == 4 else 1 + slot % 2) for slot in range(12)]
    queries = torch.randn(1, 4, sum(map(len, batch)), 16, generator=torch.Generator().manual_seed(1))
    plan = AttentionPlan(batch, cache, (None,))
    assert [type(part) for part in plan._parts] == [_Group, _Solo]
    alone = torch.zeros(queries.shape[2], 64)
    first_row = 0
    for segment in batch:
        solo = _Solo(segment, first_row, cache, (None,))
        solo.place(alone, solo.attend(0, queries))
        first_row += len(segment)
    assert float((plan.attend(0, queries) - alone).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("lengths", "width"),
    [
        ([1] * 8, 1),
        ([3] * 8, 3),
        ([1] * 7 + [2], 2),  # two rows for all cost less than a call
        ([1] * 7 + [60], 1),
        ([1] * 4 + [2] * 3 + [60], 2),
        ([60] * 8, 60),
    ],
)
def test_the_width_that_costs_least(lengths: list[int], width: int) -> None:
    batch = [rows(slot, length, CALL_COST // 10 - length) for slot, length in enumerate(lengths)]
    assert _cheapest_width(batch) == width


@pytest.mark.parametrize("lengths", [(1, 1, 1, 60), (1, 60, 1, 60, 1, 60, 1, 60)])
def test_what_a_split_would_leave_alone_is_padded_together(cache: KVCache, lengths: tuple[int, ...]) -> None:
    """Too few short segments remain, or their slots are too far apart to be read as a range."""
    batch = [rows(slot, length, start=1) for slot, length in enumerate(lengths)]
    assert _cheapest_width(batch) == 1
    assert [type(part) for part in AttentionPlan(batch, cache, (None,))._parts] == [_Group]
