"""The gateway as an ASGI application: routes, and the layers around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentspec.gateway.auth import ApiKeys, Authenticate
from agentspec.gateway.completions import Completions
from agentspec.gateway.drain import Drain
from agentspec.gateway.errors import describe, error_body
from agentspec.gateway.observed import Observed
from agentspec.gateway.request_id import RequestId
from agentspec.gateway.settings import GatewaySettings
from agentspec.gateway.stage_metrics import StageCollector
from agentspec.gateway.upstream import Endpoint, Upstream
from agentspec.gateway.url_stage import UrlStage


def create_app(
    upstream: Upstream,
    *,
    keys: ApiKeys | None = None,
    settings: GatewaySettings | None = None,
    drain: Drain | None = None,
) -> ASGIApp:
    """The gateway in front of ``upstream``, which it closes at shutdown (ASGI lifespan)."""
    settings = settings or GatewaySettings()
    registry = CollectorRegistry()
    registry.register(StageCollector(upstream.stats, settings.num_stage_labels))
    app = Starlette(
        routes=_routes(upstream, settings, drain or Drain(), registry),
        middleware=[
            Middleware(UrlStage),
            Middleware(Observed, registry=registry),
            Middleware(RequestId),
            Middleware(Authenticate, keys=keys or ApiKeys()),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected_error},
        lifespan=_closing(upstream),
    )
    app.router.redirect_slashes = False
    return app


def _routes(
    upstream: Upstream, settings: GatewaySettings, drain: Drain, registry: CollectorRegistry
) -> list[Route]:
    async def models(request: Request) -> Response:
        try:
            return await upstream.models(request.path_params.get("model_id"), request.headers)
        except Exception as error:
            status, body = describe(error)
            return JSONResponse(body, status)

    async def health(request: Request) -> Response:
        is_healthy = await upstream.is_healthy()
        return JSONResponse({"status": "ok" if is_healthy else "unavailable"}, 200 if is_healthy else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    generating = [
        Route(endpoint, Completions(endpoint, upstream, settings, drain), methods=["POST"])
        for endpoint in Endpoint
    ]
    return [
        *generating,
        Route("/v1/models", models),
        Route("/v1/models/{model_id:path}", models),
        Route("/health", health),
        Route("/metrics", metrics),
    ]


def _closing(upstream: Upstream) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await upstream.close()

    return lifespan


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    return JSONResponse(error_body(error.status_code, message, code=code), error.status_code, error.headers)


def _unexpected_error(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(500, "the server failed; its log says why", code="internal_error"), 500)
