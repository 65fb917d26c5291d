"""The sender of a request, and the limits of its API key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentspec.gateway.errors import RateLimitError

BUSY_RETRY_S = 1.0


class RateLimits:
    """A token bucket that holds a minute's requests, and a count of those in flight.

    Args:
        requests_per_minute, max_concurrent: None = no limit.
        clock: seconds, monotonic.
    """

    def __init__(
        self, requests_per_minute: int | None, max_concurrent: int | None, clock: Callable[[], float]
    ) -> None:
        self._per_minute = requests_per_minute
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._num_running = 0
        self._num_left = float(requests_per_minute or 0)
        self._filled_s = clock()

    @property
    def is_short(self) -> bool:
        """True if :meth:`take_more` may find room for one more request."""
        return False

    async def take_more(self) -> None:
        """Ask the other gateways for room."""

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count one request in flight within the context. Raises RateLimitError if it exceeds a limit."""
        self._admit()
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def _admit(self) -> None:
        self._admit_share(1)

    def _admit_share(self, num_shares: int) -> None:
        """Take a request from an equal share of the limits."""
        if self._max_concurrent is not None:
            self._check_room(math.ceil(self._max_concurrent / num_shares))
        if self._per_minute is not None:
            self._refill(self._per_minute / num_shares)
            self._take_one(60 * num_shares / self._per_minute)

    def _check_room(self, num_slots: int) -> None:
        if self._num_running >= num_slots:
            raise RateLimitError(
                f"this key may have {self._max_concurrent} requests at a time", retry_after_s=BUSY_RETRY_S
            )

    def _refill(self, per_minute: float) -> None:
        now_s = self._clock()
        most = max(1.0, per_minute)  # a share may be less than one
        self._num_left = min(most, self._num_left + (now_s - self._filled_s) * per_minute / 60)
        self._filled_s = now_s

    def _take_one(self, interval_s: float) -> None:
        """Take a request from the bucket, which gets one in each interval."""
        if self._num_left < 1:
            raise RateLimitError(
                f"this key may send {self._per_minute} requests a minute",
                retry_after_s=(1 - self._num_left) * interval_s,
            )
        self._num_left -= 1


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request.

    Attributes:
        is_operator: True if it may use routes that concern all tenants.
    """

    tenant: str
    limits: RateLimits
    is_operator: bool = False
