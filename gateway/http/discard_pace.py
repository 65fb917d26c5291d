"""A rate limit for reading discarded bytes, shared by all clients."""

from __future__ import annotations

from collections.abc import Callable

BYTES_PER_S = 32 << 20
BURST_BYTES = 16 << 20


class DiscardRate:
    """A token bucket with a balance that may be negative: bytes are counted after they were read.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_left = float(BURST_BYTES)
        self._filled_s = clock()

    def take(self, num_bytes: int) -> float:
        """Count bytes that were read. Return the seconds until more may be read."""
        now_s = self._clock()
        self._num_left = min(BURST_BYTES, self._num_left + (now_s - self._filled_s) * BYTES_PER_S) - num_bytes
        self._filled_s = now_s
        return max(0.0, -self._num_left / BYTES_PER_S)
