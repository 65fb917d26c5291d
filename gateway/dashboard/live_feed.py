"""Live feed of the engines' counters and the gateway's traffic stats, updated once a second.

The feed costs nothing when unused. All clients share one poll, and each event is encoded once per tenant, and
once for all operators. A slow client misses events and delays no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentspec.gateway.dashboard.snapshot import SlidingWindows, describe_all, describe_tenant
from agentspec.gateway.dashboard.traffic import TrafficStats
from agentspec.gateway.dashboard.workflow_graph import Path
from agentspec.gateway.errors import RateLimitError
from agentspec.gateway.http.api_response import encode_event
from agentspec.gateway.upstreams.upstream import Upstream
from agentspec.stages import StageKey
from agentspec.stats import StageStats

INTERVAL_S = 1.0
MAX_LOOKING = 32  # of one tenant at a time


class LiveFeed:
    """A live feed that polls one upstream while clients are connected. Used from the event loop only.

    The tenant None stands for all tenants, which operators see.
    """

    def __init__(
        self, upstream: Upstream, traffic_stats: TrafficStats, interval_s: float = INTERVAL_S
    ) -> None:
        self._upstream = upstream
        self._traffic_stats = traffic_stats
        self._interval_s = interval_s
        self._num_looking: Counter[str | None] = Counter()
        self._trails: dict[str | None, SlidingWindows] = {}
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._stats: Mapping[StageKey, StageStats] = {}
        self._events: dict[str | None, bytes] = {}  # events of the last poll, encoded on demand

    def check_room(self, tenant: str | None) -> None:
        """Raise RateLimitError if the tenant has reached its limit of live streams."""
        if self._num_looking[tenant] >= MAX_LOOKING:
            raise RateLimitError(
                f"{MAX_LOOKING} live streams are open with keys of this tenant; close one", retry_after_s=10
            )

    async def events(self, tenant: str | None) -> AsyncGenerator[bytes, None]:
        """Yield a tenant's figures after each poll, as server-sent events, until closed."""
        with self._looked_at(tenant):
            while True:
                await self._news.wait()
                yield self._event(tenant)

    @contextmanager
    def _looked_at(self, tenant: str | None) -> Iterator[None]:
        self._num_looking[tenant] += 1
        self._trails.setdefault(tenant, SlidingWindows())
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._num_looking[tenant] -= 1
            if not self._num_looking[tenant]:
                del self._num_looking[tenant], self._trails[tenant]
                self._events.pop(tenant, None)
            if not self._num_looking and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        while True:
            stats = await self._upstream.stats()
            now_s = time.monotonic()
            for tenant, trails in self._trails.items():
                trails.look(now_s, _of(tenant, stats))
            self._events.clear()
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(self._interval_s)

    def _event(self, tenant: str | None) -> bytes:
        event = self._events.get(tenant)
        if event is None:
            event = self._events[tenant] = encode_event(self._told(tenant))
        return event

    def _told(self, tenant: str | None) -> dict[str, Any]:
        trails = self._trails[tenant]
        if tenant is None:
            return describe_all(trails, self._traffic_stats.all(), self._interval_s)
        return describe_tenant(trails, self._traffic_stats.of(tenant), self._interval_s)


def _of(tenant: str | None, stats: Mapping[StageKey, StageStats]) -> dict[Path, StageStats]:
    """Return a tenant's counters by path, or those of all tenants by tenant and path."""
    if tenant is None:
        return {(stage.tenant, *stage.path): one for stage, one in stats.items()}
    return {stage.path: one for stage, one in stats.items() if stage.tenant == tenant}
