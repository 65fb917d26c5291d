from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentspec.engine.model.checkpoint_config import load_config
from agentspec.engine.model.kv_cache import KVCache
from agentspec.errors import EngineError


@pytest.fixture
def cache(llama_checkpoint: Path) -> KVCache:
    """Return three slots of 20 entries, where entry p of slot s holds 100 * s + p."""
    cache = KVCache(load_config(llama_checkpoint), 3, 20, torch.float32, "cpu")
    values = 100 * torch.arange(3)[:, None] + torch.arange(20)
    cache.entries.copy_(values[None, :, None, :, None])
    return cache


def test_layout_and_size(cache: KVCache) -> None:
    assert cache.keys.shape == cache.values.shape == (3, 3, 2, 20, 16)
    assert cache.num_bytes == 3 * 3 * 2 * 2 * 20 * 16 * 4
    cache.keys.fill_(1)
    cache.values.fill_(2)
    assert cache.entries.sum() == 3 * cache.entries.numel() / 2


@pytest.mark.parametrize("path", [[], [0], [0, 1, 2, 3]])
def test_a_chain_stays_where_it_is(cache: KVCache, path: list[int]) -> None:
    before = cache.entries.clone()
    cache.keep(1, 5, path)
    assert torch.equal(cache.entries, before)


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 3, 4, 9], [2, 3, 4, 5, 6], [0, 1, 2, 9]])
def test_the_path_moves_together_and_nothing_else_does(cache: KVCache, path: list[int]) -> None:
    before = cache.entries.clone()
    cache.keep(1, 5, path)
    for i, index in enumerate(path):
        assert torch.equal(cache.entries[:, 1, :, 5 + i], before[:, 1, :, 5 + index])
    assert torch.equal(cache.entries[:, 1, :, :5], before[:, 1, :, :5])
    assert torch.equal(cache.entries[:, 1, :, 5 + len(path) :], before[:, 1, :, 5 + len(path) :])
    assert torch.equal(cache.entries[:, [0, 2]], before[:, [0, 2]])


@pytest.mark.parametrize(
    ("slot", "path", "message"),
    [
        (1, [0, 3, 2], "must ascend"),
        (1, [-1, 2], "must ascend"),
        (1, [0, 15], "leaves slot"),
        (3, [1], "slot 3"),
    ],
)
def test_a_wrong_path_changes_nothing(cache: KVCache, slot: int, path: list[int], message: str) -> None:
    before = cache.entries.clone()
    with pytest.raises(EngineError, match=message):
        cache.keep(slot, 5, path)
    assert torch.equal(cache.entries, before)


def test_integrity(cache: KVCache) -> None:
    cache.check_integrity()
    cache.entries[2, 1, 0, 3, 0] = float("nan")
    with pytest.raises(EngineError, match="layer 2"):
        cache.check_integrity()
