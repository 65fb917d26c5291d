"""The size of KV caches within a limit, and what slots have reserved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentspec.engine.kv_memory import KVMemory, MakeCache, fitting_size
from agentspec.engine.model.checkpoint_config import load_config
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.kv_cache import KVCache
from agentspec.errors import ConfigError

TOKEN = 3 * 2 * 2 * 16 * 4  # bytes; on a CPU pages hold 64 tokens


@pytest.fixture(scope="module")
def config(llama_checkpoint: Path) -> ModelConfig:
    return load_config(llama_checkpoint)


def makes(config: ModelConfig, device: str) -> MakeCache:
    return lambda slots, length: KVCache(config, slots, length, torch.float32, device)


@pytest.mark.parametrize(
    ("device", "num_slots", "max_len", "limit", "expected"),
    [
        ("cpu", 16, 1000, 1 << 40, (16, 1000)),
        ("cpu", 16, 1000, 1024 * TOKEN, (16, 1000)),  # of 16 pages: each sequence has one at least
        ("cpu", 16, 1000, 1024 * TOKEN - 1, (15, 960)),
        ("cpu", 16, 1000, 64 * TOKEN, (1, 64)),
        ("meta", 16, 1000, 1 << 40, (16, 1000)),
        ("meta", 16, 1000, 3500 * TOKEN, (3, 1000)),
        ("meta", 16, 1000, 500 * TOKEN, (1, 500)),
        ("cpu", 1, 5, 64 * TOKEN, (1, 5)),
    ],
)
def test_the_size_within_a_limit(
    device: str,
    num_slots: int,
    max_len: int,
    limit: int,
    expected: tuple[int, int],
    config: ModelConfig,
) -> None:
    make = makes(config, device)
    size = fitting_size(make, num_slots, max_len, limit)
    assert (size.num_slots, size.max_len) == expected
    memory = KVMemory(make(size.num_slots, size.max_len), limit)
    assert memory.reserve(0, size.max_len)
    memory.clear(0)
    assert all(memory.reserve(slot, 1) for slot in range(size.num_slots))
    assert bool(size.limited_by) is (size.max_len < max_len)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_limit_that_is_too_low(device: str, config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"0 MiB holds 0 tokens .for 1000000 give --kv-cache-mb"):
        fitting_size(makes(config, device), 16, 1_000_000, TOKEN - 1)


def test_the_named_limit_is_enough(config: ModelConfig) -> None:
    size = fitting_size(makes(config, "cpu"), 16, 100_000, 8 << 20)
    assert size.limited_by == ("the KV cache of 8 MiB holds 10880 tokens (for 100000 give --kv-cache-mb 74)")
    assert fitting_size(makes(config, "cpu"), 16, 100_000, 74 << 20).max_len == 100_000
    assert fitting_size(makes(config, "cpu"), 16, 100_000, 73 << 20).max_len < 100_000


def test_reservations(config: ModelConfig) -> None:
    memory = KVMemory(makes(config, "cpu")(4, 1000), 10 * 64 * TOKEN)
    assert memory.reserve(2, 300)
    assert memory.reserve(0, 300)
    assert memory.num_reserved_bytes == memory.limit_bytes
    assert not memory.reserve(1, 1)
    assert not memory.reserve(0, 321)
    assert memory.num_reserved_bytes == memory.limit_bytes  # a refusal changes nothing
    assert memory.reserve(0, 64)  # in place of the 300
    assert memory.reserve(1, 256)
    for slot in (0, 1, 1, 2, 3):
        memory.clear(slot)
    assert memory.num_reserved_bytes == 0
