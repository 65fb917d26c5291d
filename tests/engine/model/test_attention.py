"""Padded groups and single segments attend alike. The GPU's methods are checked on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import _CopyWriter, _Group, _IndexWriter, _Solo
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
