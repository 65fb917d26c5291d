from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentspec.engine.model.checkpoint_config import load_config
from agentspec.engine.model.kv_cache import KVCache
from agentspec.errors import ConfigError, EngineError


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.fixture
def cache(llama_checkpoint: Path) -> KVCache:
    """Return three slots of 20 entries, where entry p of slot s holds 100 * s + p."""
    cache = KVCache(load_config(llama_checkpoint), 3, 20, torch.float32, "cpu")
    values = 100 * torch.arange(3)[:, None] + torch.arange(20)
    cache.entries.copy_(values[None, :, None, :, None])
    return cache


def test_layout_and_size(cache: KVCache) -> None:
    assert cache.keys.shape == cache.values.shape == (3, 3, 2, 20, 16)
    cache.keys.fill_(1)
    cache.values.fill_(2)
    assert cache.entries.sum() == 3 * cache.entries.numel() / 2


@pytest.mark.parametrize(
    ("device", "num_tokens", "counted"),
    [
        ("cpu", 1, 64),  # 64 tokens of 16 float32 fill a page
        ("cpu", 64, 64),
        ("cpu", 65, 128),
        ("cpu", 300, 320),
        ("meta", 1, 300),  # a slot is allocated whole
        ("meta", 300, 300),
    ],
)
def test_memory_of_a_slot(device: str, num_tokens: int, counted: int, llama_checkpoint: Path) -> None:
    cache = KVCache(load_config(llama_checkpoint), 3, 300, torch.float32, device)
    assert cache.bytes_of(num_tokens) == 3 * 2 * 2 * 16 * 4 * counted


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (16, torch.float64),
        (24, torch.float32),
        (64, torch.float32),
        (96, torch.bfloat16),
        (128, torch.bfloat16),
    ],
)
def test_slots_take_memory_for_their_tokens_only(
    head_dim: int, dtype: torch.dtype, llama_checkpoint: Path
) -> None:
    """Write tokens to two slots of address space for terabytes, and clear one of them."""
    config = replace(load_config(llama_checkpoint), head_dim=head_dim)
    cache = KVCache(config, 64, 1 << 20, dtype, "cpu")
    num_tokens = (32 << 20) // (3 * 2 * 2 * head_dim * dtype.itemsize)
    expected = cache.bytes_of(num_tokens)
    assert expected == pytest.approx(32 << 20, rel=0.02)
    before = resident_bytes()
    for number, slot in enumerate((5, 40), 1):
        cache.entries[:, slot, :, :num_tokens] = 1
        assert resident_bytes() - before == pytest.approx(number * expected, abs=4 << 20)
    cache.clear(40)
    assert resident_bytes() - before == pytest.approx(expected, abs=4 << 20)
    assert not cache.entries[:, 40, :, :num_tokens].any()
    assert (cache.entries[:, 5, :, :num_tokens] == 1).all()


def test_too_little_address_space_is_an_error(llama_checkpoint: Path) -> None:
    cache = KVCache(load_config(llama_checkpoint), 1 << 20, 1 << 30, torch.float32, "cpu")
    with pytest.raises(ConfigError, match=r"address space .* lower --slots or --max-model-len"):
        _ = cache.entries


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
