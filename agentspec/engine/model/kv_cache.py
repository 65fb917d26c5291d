"""Keys and values of every slot, in one tensor. Knows nothing of requests."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.config import ModelConfig
from agentspec.errors import ConfigError, EngineError

PAGE_BYTES = mmap.PAGESIZE
# Linux refuses far more address space than there is memory without this flag. Python 3.11 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


class KVCache:
    """``num_slots`` contexts of at most ``max_len`` tokens.

    ``entries`` is ``[layers, slots, 2 * kv_heads, max_len, head_dim]``, the keys' heads before the
    values'. One slot is a view, and keys and values of new tokens are written in one copy.
    Entries that were never written are zero, so that a masked read of them is harmless.

    On a CPU ``entries`` is address space: a slot takes memory for the tokens that it holds, until it is
    cleared. On other devices the first use allocates all of it.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.num_slots = num_slots
        self.max_len = max_len
        self.num_kv_heads = config.num_kv_heads
        self._dtype = dtype
        self._device = torch.device(device)
        self._num_layers = config.num_layers
        self._head_dim = config.head_dim
        self._pages: PageMemory | None = None

    @cached_property
    def entries(self) -> torch.Tensor:
        """Keys and values, as described above. Raises ConfigError if a CPU has no address space for them."""
        shape = (self._num_layers, self.num_slots, 2 * self.num_kv_heads, self._padded_len, self._head_dim)
        with torch.inference_mode(False):  # the first use may be within a forward pass
            if not self._is_paged:
                return torch.zeros(shape, dtype=self._dtype, device=self._device)
            self._pages = PageMemory(self._num_layers * self.num_slots * self._slot_bytes)
            return self._pages.tensor(self._dtype).view(shape)[:, :, :, : self.max_len]

    @property
    def _is_paged(self) -> bool:
        return self._device.type == "cpu"

    @property
    def _page_tokens(self) -> int:
        """Tokens of a head that fill whole pages; on other devices than a CPU, a whole slot."""
        if not self._is_paged:
            return self.max_len
        return PAGE_BYTES // math.gcd(PAGE_BYTES, self._head_dim * self._dtype.itemsize)

    @property
    def _padded_len(self) -> int:
        """Tokens between the first entries of two heads: each begins with a page of its own."""
        return -(-self.max_len // self._page_tokens) * self._page_tokens

    @property
    def _slot_bytes(self) -> int:
        """Bytes of one slot in one layer."""
        return 2 * self.num_kv_heads * self._padded_len * self._head_dim * self._dtype.itemsize

    def bytes_of(self, num_tokens: int) -> int:
        """Return the memory of a slot that holds this many tokens, at least one."""
        whole = -(-num_tokens // self._page_tokens) * self._page_tokens
        return self._num_layers * self._slot_bytes // self._padded_len * whole

    def clear(self, slot: int) -> None:
        """Drop the entries of a slot. On a CPU this frees the slot's memory."""
        if self._pages is not None:
            for layer in range(self._num_layers):
                self._pages.release((layer * self.num_slots + slot) * self._slot_bytes, self._slot_bytes)

    @property
    def keys(self) -> torch.Tensor:
        """View ``[layers, slots, kv_heads, max_len, head_dim]``."""
        return self.entries[:, :, : self.num_kv_heads]

    @property
    def values(self) -> torch.Tensor:
        """View ``[layers, slots, kv_heads, max_len, head_dim]``."""
        return self.entries[:, :, self.num_kv_heads :]

    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the entries ``start + path[i]`` to ``start + i``: the accepted path only.

        ``path`` holds ascending indices within the slot's last segment. A path of 0..k moves nothing.

        Raises:
            EngineError: the path does not ascend or leaves the slot.
        """
        moved = next((i for i, index in enumerate(path) if index != i), len(path))
        if moved == len(path):
            return
        if any(a >= b for a, b in pairwise(path)) or path[0] < 0:
            raise EngineError(f"the path to keep must ascend from 0 or above: {list(path)!r}")
        if not 0 <= slot < self.num_slots or start + path[-1] >= self.max_len:
            raise EngineError(f"path {list(path)!r} at {start!r} leaves slot {slot!r} of {self.max_len}")
        with torch.inference_mode():
            entries = self.entries[:, slot]
            sources = torch.tensor(path[moved:], device=entries.device) + start
            entries[:, :, start + moved : start + len(path)] = entries.index_select(2, sources)

    def check_bounds(self, segments: Sequence[Segment]) -> None:
        """Raise EngineError if a segment does not fit its slot, or two share one."""
        for segment in segments:
            if not 0 <= segment.slot < self.num_slots:
                raise EngineError(f"no KV slot {segment.slot!r}: there are {self.num_slots}")
            if segment.start < 0 or len(segment) < 1 or segment.end > self.max_len:
                raise EngineError(
                    f"{len(segment)} tokens from {segment.start!r} do not fit slot {segment.slot!r}"
                    f" of {self.max_len} tokens"
                )
        if len({segment.slot for segment in segments}) != len(segments):
            raise EngineError(f"a slot occurs twice in one pass: {[s.slot for s in segments]!r}")

    def check_integrity(self) -> None:
        """Raise EngineError if any entry is not finite."""
        for layer, entries in enumerate(self.entries):
            if not bool(torch.isfinite(entries).all()):
                raise EngineError(f"the KV cache of layer {layer} holds a value that is not finite")


class PageMemory:
    """Memory of a CPU that takes pages only when they are written, and can return them.

    Address space for ``num_bytes``, of which only pages that were written take memory. It begins as zeros.

    Raises:
        ConfigError: the system refuses the address space.
    """

    def __init__(self, num_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            self._map = mmap.mmap(-1, num_bytes, flags=flags)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the system refuses {num_bytes / (1 << 30):.1f} GiB of address space for the KV cache "
                f"({error}): lower --slots or --max-model-len, or raise the limit (ulimit -v)"
            ) from error
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would hold 2 MiB for a few tokens

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the memory as a tensor ``[elements]``, which keeps it alive."""
        return torch.frombuffer(self._map, dtype=dtype)

    def release(self, start: int, num_bytes: int) -> None:
        """Give pages back. ``start`` is a multiple of ``PAGE_BYTES``; on Linux they are zeros afterwards."""
        is_linux = sys.platform == "linux"
        self._map.madvise(mmap.MADV_DONTNEED if is_linux else mmap.MADV_FREE, start, num_bytes)
