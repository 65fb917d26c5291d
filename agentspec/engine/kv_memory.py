"""How much memory the slots of the KV cache may take together, and how much each has reserved."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import torch

from agentspec.config import MIB
from agentspec.engine.machine_memory import available_memory
from agentspec.engine.model.kv_cache import KVCache
from agentspec.errors import ConfigError

FREE_SHARE = 1 / 2  # of the memory that is free once the weights are loaded: the trees grow, too
FEWEST_TOKENS = 16  # of a context that is of any use

MakeCache = Callable[[int, int], KVCache]


class KVMemory:
    """The memory of a cache's slots.

    Implements :class:`agentspec.engine.scheduler.SlotMemory`.

    Args:
        cache: its slots take the memory.
        limit_bytes: limit of all slots' memory; at least the memory of one slot of ``max_len`` tokens.
    """

    def __init__(self, cache: KVCache, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._cache = cache
        self._reserved: dict[int, int] = {}  # bytes by slot
        self._num_reserved_bytes = 0

    @property
    def num_reserved_bytes(self) -> int:
        """Memory reserved for all slots."""
        return self._num_reserved_bytes

    def reserve(self, slot: int, num_tokens: int) -> bool:
        """Replace a slot's reservation by memory for ``num_tokens``.

        Returns:
            False, and nothing changes, if the limit does not allow it.
        """
        wanted = self._cache.bytes_of(num_tokens)
        total = self._num_reserved_bytes - self._reserved.get(slot, 0) + wanted
        if total > self.limit_bytes:
            return False
        self._reserved[slot] = wanted
        self._num_reserved_bytes = total
        return True

    def clear(self, slot: int) -> None:
        """Drop the entries and the reservation of a slot."""
        self._num_reserved_bytes -= self._reserved.pop(slot, 0)
        self._cache.clear(slot)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of a KV cache.

    Attributes:
        num_slots: its slots.
        max_len: most tokens of a slot.
        limit_bytes: most memory of all slots.
        limited_by: the reason why ``max_len`` is less than requested, as the end of a sentence; empty = it is
            not.
    """

    num_slots: int
    max_len: int
    limit_bytes: int
    limited_by: str


def fitting_size(make: MakeCache, num_slots: int, max_len: int, limit_bytes: int) -> CacheSize:
    """Return the size that a limit allows, at most ``num_slots`` slots of ``max_len`` tokens.

    On a CPU one slot of that length has to fit, since memory follows the tokens; elsewhere all slots have to.

    Args:
        make: returns a cache for a number of slots and of tokens. It takes no memory before its use.

    Raises:
        ConfigError: the limit has no room for ``FEWEST_TOKENS``.
    """

    def slot_bytes(slot_len: int, num_tokens: int) -> int:
        return make(1, slot_len).bytes_of(num_tokens)

    fitting = bisect_right(range(1, max_len + 1), limit_bytes, key=lambda size: slot_bytes(size, size))
    limited_by = (
        "" if fitting == max_len else _reason(limit_bytes, fitting, max_len, slot_bytes(max_len, max_len))
    )
    if fitting < min(FEWEST_TOKENS, max_len):
        raise ConfigError(f"the engine can't serve: {limited_by}")
    return CacheSize(min(num_slots, limit_bytes // slot_bytes(fitting, 1)), fitting, limit_bytes, limited_by)


def _reason(limit_bytes: int, fitting: int, max_len: int, wanted_bytes: int) -> str:
    return (
        f"the KV cache of {limit_bytes // MIB} MiB holds {fitting} tokens (for {max_len} give "
        f"--kv-cache-mb {-(-wanted_bytes // MIB)})"
    )


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device; if torch can't report them, those of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()
