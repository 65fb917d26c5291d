"""Live feed of the engines' counters and the gateway's traffic stats, updated once a second.

The feed costs nothing when unused. All clients share one poll, and each event is encoded once per tenant, and
once for all operators. A slow client misses events and delays no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentspec.gateway.dashboard.snapshot import (
    SlidingWindows,
    describe_all,
    describe_engines,
    describe_tenant,
)
from agentspec.gateway.dashboard.traffic import Path, TrafficStats
from agentspec.gateway.errors import RateLimitError
from agentspec.gateway.http.api_response import encode_event
from agentspec.gateway.upstreams.upstream import Upstream
from agentspec.stages import StageKey
from agentspec.stats import StageStats

INTERVAL_S = 1.0
MAX_VIEWERS = 32  # of one tenant at a time


class LiveFeed:
    """A live feed that polls one upstream while clients are connected. Used from the event loop only.

    The tenant None stands for all tenants, which operators see. Figures of engines are for operators: they
    sum over tenants.

    Args:
        is_open: returns True if every client is an operator.
    """

    def __init__(
        self,
        upstream: Upstream,
        traffic_stats: TrafficStats,
        interval_s: float = INTERVAL_S,
        is_open: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_open = is_open
        self._upstream = upstream
        self._traffic_stats = traffic_stats
        self._interval_s = interval_s
        self._num_viewers: Counter[str | None] = Counter()
        self._windows: dict[str | None, SlidingWindows] = {}
        self._polling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._stats: Mapping[StageKey, StageStats] = {}
        self._events: dict[str | None, bytes] = {}  # events of the last poll, encoded on demand

    def check_room(self, tenant: str | None) -> None:
        """Raise RateLimitError if the tenant has reached its limit of live streams."""
        if self._num_viewers[tenant] >= MAX_VIEWERS:
            raise RateLimitError(
                f"{MAX_VIEWERS} live streams are open with keys of this tenant; close one", retry_after_s=10
            )

    async def events(self, tenant: str | None) -> AsyncGenerator[bytes, None]:
        """Yield a tenant's figures after each poll, as server-sent events, until closed."""
        with self._viewed(tenant):
            while True:
                await self._news.wait()
                yield self._event(tenant)

    @contextmanager
    def _viewed(self, tenant: str | None) -> Iterator[None]:
        self._num_viewers[tenant] += 1
        self._windows.setdefault(tenant, SlidingWindows())
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._num_viewers[tenant] -= 1
            if not self._num_viewers[tenant]:
                del self._num_viewers[tenant], self._windows[tenant]
                self._events.pop(tenant, None)
            if not self._num_viewers and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self) -> None:
        while True:
            stats = await self._upstream.stats()
            now_s = time.monotonic()
            for tenant, windows in self._windows.items():
                windows.update(now_s, _of(tenant, stats))
            self._events.clear()
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(self._interval_s)

    def _event(self, tenant: str | None) -> bytes:
        event = self._events.get(tenant)
        if event is None:
            event = self._events[tenant] = encode_event(self._snapshot(tenant))
        return event

    def _snapshot(self, tenant: str | None) -> dict[str, Any]:
        windows = self._windows[tenant]
        if tenant is None:
            snapshot = describe_all(windows, self._traffic_stats.all(), self._interval_s)
        else:
            snapshot = describe_tenant(windows, self._traffic_stats.of(tenant), self._interval_s)
        if tenant is None or self._is_open():
            snapshot["engines"] = describe_engines(self._upstream.corpora())
        return snapshot


def _of(tenant: str | None, stats: Mapping[StageKey, StageStats]) -> dict[Path, StageStats]:
    """Return a tenant's counters by path, or those of all tenants by tenant and path."""
    if tenant is None:
        return {(stage.tenant, *stage.path): one for stage, one in stats.items()}
    return {stage.path: one for stage, one in stats.items() if stage.tenant == tenant}
