"""Memory of a CPU that takes pages only where it was written, and gives them back."""

from __future__ import annotations

import mmap
import sys

import torch

from agentspec.errors import ConfigError

PAGE_BYTES = mmap.PAGESIZE
# Linux refuses far more address space than there is memory without this flag. Python 3.11 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


class PageMemory:
    """Address space for ``num_bytes``, of which only pages that were written take memory. It begins as zeros.

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
