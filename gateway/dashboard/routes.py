"""The dashboard: the page at ``/ui`` and its live feed, ``GET /agentspec/events``.

The page is one file without data, open to every client that can reach the gateway. The feed belongs to a
tenant, and requires its key or the operator's, like all of ``/agentspec/``. It joins the engines' counters
and the gateway's traffic stats once a second, and costs nothing when unused. All clients share one poll. Each
event is encoded once per tenant, and once for all operators. A slow client misses events and delays no other.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentspec.gateway.auth.api_keys import RuntimeConfig
from agentspec.gateway.auth.middleware import UI_PATH
from agentspec.gateway.dashboard.snapshot import (
    SlidingWindows,
    describe_all,
    describe_engines,
    describe_tenant,
)
from agentspec.gateway.dashboard.traffic import StagePath, TrafficStats
from agentspec.gateway.errors import RateLimitError, ShuttingDownError
from agentspec.gateway.http.api_response import (
    EVENT_STREAM_HEADERS,
    ApiResponse,
    AsgiResponseWriter,
    encode_event,
)
from agentspec.gateway.http.cancellation import CancelScope, ClientGoneError, GracefulShutdown
from agentspec.gateway.http.context import context_of
from agentspec.gateway.upstreams.upstream import Upstream
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.wire import OWN_PREFIX

INTERVAL_S = 1.0
MAX_VIEWERS = 32  # of one tenant at a time
EVENTS_PATH = f"{OWN_PREFIX}events"
_HEADERS = {
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


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


def _of(tenant: str | None, stats: Mapping[StageKey, StageStats]) -> dict[StagePath, StageStats]:
    """Return a tenant's counters by path, or those of all tenants by tenant and path."""
    if tenant is None:
        return {(stage.tenant, *stage.path): one for stage, one in stats.items()}
    return {stage.path: one for stage, one in stats.items() if stage.tenant == tenant}


PAGE_FILE = Path(__file__).with_name("ui.html")


def ui_routes(feed: LiveFeed, runtime: RuntimeConfig, shutdown: GracefulShutdown) -> list[Route]:
    """Return the routes of the page and of its live feed."""
    text = PAGE_FILE.read_text(encoding="utf-8")
    headers = {"content-security-policy": content_security_policy(text), **_HEADERS}

    async def page(request: Request) -> Response:
        return Response(text, media_type="text/html", headers=headers)

    return [
        Route(UI_PATH, page),
        Route(EVENTS_PATH, Events(feed, runtime, shutdown), methods=["GET"]),
    ]


class Events:
    """The live feed of a tenant, or of all tenants for an operator.

    Ends when the client disconnects, the keys change or a graceful shutdown begins.
    """

    def __init__(self, feed: LiveFeed, runtime: RuntimeConfig, shutdown: GracefulShutdown) -> None:
        self._feed = feed
        self._runtime = runtime
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the feed. Raises RateLimitError, before anything is sent, if the tenant has too many."""
        context = context_of(scope)
        tenant = context.tenant
        self._feed.check_room(tenant)
        response, cancel_scope = ApiResponse(AsgiResponseWriter(send)), CancelScope()

        async def stream() -> None:
            cancel_scope.cancel_on_disconnect(context.writer, receive)
            await self._stream(tenant, response)

        try:
            with suppress(ClientGoneError):  # the normal end of such a stream
                await self._shutdown.run(stream(), cancel_scope)
        except ShuttingDownError:  # the client does not read
            if not response.is_started:
                raise

    async def _stream(self, tenant: str | None, response: ApiResponse) -> None:
        keys = self._runtime.keys
        await response.start(200, EVENT_STREAM_HEADERS)
        async with aclosing(self._feed.events(tenant)) as events:
            async for event in events:
                # clients with a valid key may reconnect
                if self._shutdown.has_begun or self._runtime.keys is not keys:
                    break
                await response.write(event)
        await response.end()


def content_security_policy(page: str) -> str:
    """Return a policy that allows only the page's own script and style, by their hashes.

    The page may connect to this server only, use images from data URLs only, and not be framed. Trusted types
    prevent the script from turning text into markup.
    """
    script, style = (_hashes(page, name) for name in ("script", "style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )


def _hashes(page: str, element: str) -> str:
    inner = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digests = (base64.b64encode(sha256(text.encode()).digest()).decode() for text in inner)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
