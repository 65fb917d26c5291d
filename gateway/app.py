"""The gateway as an ASGI application: routes and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import AgentSpecError
from agentspec.gateway.auth.api_keys import RuntimeConfig
from agentspec.gateway.auth.middleware import METRICS_PATH, OPEN_PATHS, AuthMiddleware
from agentspec.gateway.control.cluster_routes import discovery_routes
from agentspec.gateway.control.routes import control_routes
from agentspec.gateway.dashboard.routes import LiveFeed, ui_routes
from agentspec.gateway.dashboard.traffic import TrafficStats
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.errors import describe, error_body
from agentspec.gateway.handler import CallHandler
from agentspec.gateway.http.cancellation import ClientGoneError, GracefulShutdown
from agentspec.gateway.http.context import context_of
from agentspec.gateway.http.cors import CorsMiddleware
from agentspec.gateway.stages.read_tags import UrlTagsMiddleware
from agentspec.gateway.telemetry.middleware import CLIENT_GONE, TelemetryMiddleware
from agentspec.gateway.upstreams.metrics import stage_metrics
from agentspec.gateway.upstreams.upstream import Upstream
from agentspec.wire import OWN_PREFIX

if TYPE_CHECKING:
    from agentspec.gateway.sharing.service import Sharing
    from agentspec.gateway.telemetry.recorder import Recorder
    from agentspec.gateway.telemetry.tracing import Tracing


def create_app(
    upstream: Upstream,
    *,
    runtime: RuntimeConfig | None = None,
    shutdown: GracefulShutdown | None = None,
    discovery: Discovery | None = None,
    tracing: Tracing | None = None,
    recorder: Recorder | None = None,
    sharing: Sharing | None = None,
) -> ASGIApp:
    """Return the gateway in front of ``upstream``.

    Its lifespan starts ``sharing`` and ``upstream``, and closes them and ``discovery``.

    Args:
        runtime: keys and limits, read at every request. With an ``admin_key``, ``/metrics`` and the routes
            that save and load trees need that key.
        discovery: finds the stages of requests without a tag; without it they share one stage.
        tracing: creates a span for every call.
        recorder: writes every call to a file; the caller closes it.
        sharing: with other gateways; the ``runtime`` has its limits.
    """
    runtime, shutdown, traffic_stats = (
        runtime or RuntimeConfig(),
        shutdown or GracefulShutdown(),
        TrafficStats(),
    )
    registry = CollectorRegistry()
    feed = LiveFeed(upstream, traffic_stats, is_open=lambda: not runtime.keys and runtime.admin_key is None)
    own = Starlette(
        routes=[
            *_routes(upstream, runtime, registry, discovery, sharing),
            *ui_routes(feed, runtime, shutdown),
        ],
        exception_handlers={
            HTTPException: _http_error,
            AgentSpecError: _our_error,
            ClientGoneError: _client_left,
            Exception: _unexpected_error,
        },
        lifespan=_running(upstream, runtime, discovery, sharing),
    )
    own.router.redirect_slashes = False
    either = RouteSplit(own, CallHandler(upstream, runtime, shutdown, traffic_stats, discovery, recorder))
    answering = CorsMiddleware(AuthMiddleware(either, runtime), lambda: runtime.cors_origins)
    return UrlTagsMiddleware(TelemetryMiddleware(answering, registry, tracing))


class RouteSplit:
    """Dispatches our own routes to Starlette and all other requests to the upstream.

    Calls bypass Starlette, which wraps every chunk of a response.
    """

    def __init__(self, own: ASGIApp, calls: ASGIApp) -> None:
        self._own = own
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch the request."""
        is_call = scope["type"] == "http" and not _is_own(scope["path"])
        await (self._calls if is_call else self._own)(scope, receive, send)


class CollectedMetrics(CollectorRegistry):
    """Metrics that were already collected, in the form that encoders take."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


def _is_own(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OWN_PREFIX)


def _routes(
    upstream: Upstream,
    runtime: RuntimeConfig,
    registry: CollectorRegistry,
    discovery: Discovery | None,
    sharing: Sharing | None,
) -> list[Route]:
    async def health(request: Request) -> Response:
        is_healthy = await upstream.is_healthy()
        return JSONResponse({"status": "ok" if is_healthy else "unavailable"}, 200 if is_healthy else 503)

    async def metrics(request: Request) -> Response:
        collected = CollectedMetrics(
            chain(
                stage_metrics(await upstream.stats(), runtime.limits.num_stage_labels),
                await upstream.metrics(),
                registry.collect(),
                sharing.metrics() if sharing else (),
            )
        )
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(collected), headers={"content-type": content_type})

    return [
        *control_routes(upstream, runtime),
        *(discovery_routes(discovery) if discovery else ()),
        Route("/health", health),
        Route("/ping", health),
        Route(METRICS_PATH, metrics),
    ]


def _running(
    upstream: Upstream, runtime: RuntimeConfig, discovery: Discovery | None, sharing: Sharing | None
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with sharing.running(runtime) if sharing else nullcontext():
            await upstream.start()
            try:
                yield
            finally:
                await upstream.close()
                if discovery is not None:
                    await run_in_threadpool(discovery.close)

    return lifespan


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.scope['path']}: {error.detail}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    return JSONResponse(error_body(error.status_code, message, code=code), error.status_code, error.headers)


def _our_error(request: Request, error: Exception) -> Response:
    status, body = describe(error, context_of(request.scope).request_id)
    headers = {name.decode(): value.decode() for name, value in getattr(error, "headers", ())}
    return JSONResponse(body, status, headers)


def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def _unexpected_error(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(500, "the server failed; its log says why", code="internal_error"), 500)
