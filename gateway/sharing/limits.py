"""The limits of an API key that several gateways accept: what one gateway takes, and gives back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric

from agentspec.gateway.call import RateLimits

SETTLED_S = 1.0  # within it other gateways give back what they do not use
CHUNK_S = 0.25  # a gateway takes so much of a minute's requests at a time


@dataclass(frozen=True, slots=True)
class Wanted:
    """A gateway's request for a part of a key's limits.

    Attributes:
        limit: name of the limit, the same in all gateways.
        holder: who wants it, unique in its gateway.
        num_slots: requests at a time, those it has included.
        num_requests: to start; negative ones are given back.
        requests_per_minute, max_concurrent: None = no limit.
    """

    limit: str
    holder: str
    num_slots: int
    num_requests: int
    requests_per_minute: int | None
    max_concurrent: int | None


@dataclass(frozen=True, slots=True)
class Granted:
    """The store's answer.

    Attributes:
        num_slots: requests at a time, until the next heartbeat.
        num_requests: to start; negative if they were given back.
        wait_s: until there is another one to start.
    """

    num_slots: int
    num_requests: int
    wait_s: float


class LimitPool(Protocol):
    """What gateways share, as limits see it."""

    @property
    def is_away(self) -> bool:
        """True while the store can't be used."""

    @property
    def num_gateways(self) -> int:
        """Gateways alive, as of the last answer of the store."""

    async def take(self, wanted: Wanted) -> Granted | None:
        """Take from a limit, or give back; None if the store is away."""


class SharedLimits(RateLimits):
    """A gateway's part of a limit. It asks the store only if its part is used up.

    The parts of all gateways together never exceed the limit. While the store is away, each gateway
    admits an equal share of the limit.

    Args:
        name: the same in all gateways.
        requests_per_minute, max_concurrent: None = no limit.
        pool: gives parts.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        name: str,
        requests_per_minute: int | None,
        max_concurrent: int | None,
        pool: LimitPool,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(requests_per_minute, max_concurrent, clock)
        self._name = name
        self._holder = uuid.uuid4().hex[:12]  # a reload may replace this object while its requests run
        self._pool = pool
        self._taking = asyncio.Lock()
        self._num_left = 0.0  # requests to start, taken from the store
        self._filled_s -= 60.0  # without a store it begins with its whole share
        self._num_slots = 0  # requests at a time, held in the store
        self._most_running = 0  # since the last settle()
        self._has_started = False  # since then
        self._retry_s = 0.0
        self._dry_until_s = 0.0  # until then the store has no request to start

    @property
    def is_short(self) -> bool:
        """True if this gateway's part has no room for one more request, and the store may have."""
        if self._pool.is_away or (self._lacks_request and self._clock() < self._dry_until_s):
            return False
        return self._lacks_slot or self._lacks_request

    async def take_more(self) -> None:
        """Take room for one more request from the store, and some requests in advance."""
        async with self._taking:
            if self.is_short:
                chunk = 1 + int((self._per_minute or 0) * CHUNK_S / 60)
                await self._take(self._num_running + 1, chunk if self._lacks_request else 0)

    async def settle(self) -> None:
        """Renew the part in use, and give the rest back."""
        async with self._taking:
            most_running, has_started = max(self._most_running, self._num_running), self._has_started
            self._most_running, self._has_started = self._num_running, False
            if most_running or self._num_slots or self._num_left >= 1:
                await self._take(most_running, 0 if has_started else -int(self._num_left))

    def begin_anew(self) -> None:
        """Drop the requests that were counted while the store was away."""
        self._num_left = 0.0
        self._dry_until_s = 0.0

    async def give_back(self) -> None:
        """Give everything back."""
        async with self._taking:
            if self._num_slots or self._num_left >= 1:
                await self._take(0, -int(self._num_left))

    @property
    def _lacks_slot(self) -> bool:
        return self._max_concurrent is not None and self._num_running >= self._num_slots

    @property
    def _lacks_request(self) -> bool:
        return self._per_minute is not None and self._num_left < 1

    async def _take(self, num_slots: int, num_requests: int) -> None:
        before = self._num_slots
        self._num_slots = min(before, num_slots)  # meanwhile nothing is used that is given back
        self._num_left += min(num_requests, 0)
        granted = await self._pool.take(
            Wanted(self._name, self._holder, num_slots, num_requests, self._per_minute, self._max_concurrent)
        )
        if granted is None:
            self._num_slots = before
            return
        self._num_slots = granted.num_slots
        self._num_left += max(granted.num_requests, 0)
        self._filled_s = self._clock()
        self._retry_s = granted.wait_s
        if num_requests > 0 and granted.num_requests < 1:
            self._dry_until_s = self._clock() + min(granted.wait_s, SETTLED_S)

    def _admit(self) -> None:
        if self._pool.is_away:
            self._admit_share(self._pool.num_gateways)
        else:
            if self._max_concurrent is not None:
                self._check_room(self._num_slots)
            if self._per_minute is not None:
                self._take_one(self._retry_s)
        self._has_started = True
        self._most_running = max(self._most_running, self._num_running + 1)


def sharing_metrics(pool: LimitPool) -> Iterator[Metric]:
    """Yield the metric families of the gateways alive, and of the store that they share."""
    alive = "Gateways alive that share limits, as of the last answer of the store"
    yield GaugeMetricFamily("agentspec_gateways", alive, pool.num_gateways)
    up = "1 if the store that gateways share can be used"
    yield GaugeMetricFamily("agentspec_gateway_store_up", up, int(not pool.is_away))
