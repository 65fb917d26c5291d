"""The outermost middleware in front of our own engine: while it starts, clients are asked to retry."""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.gateway.engine_process.supervisor import EngineSupervisor
from agentspec.gateway.errors import error_body
from agentspec.gateway.http.context import ensure_context
from agentspec.gateway.http.cors import cors_headers, is_preflight

RETRY_AFTER = {"retry-after": "5"}
METRICS = "/metrics"  # the gateway's own metrics are always available


class ReadinessMiddleware:
    """Answers 503 until ``engine`` is ready, so that no request waits or fails on it."""

    def __init__(self, app: ASGIApp, engine: EngineSupervisor, origins: Callable[[], frozenset[str]]) -> None:
        self._app = app
        self._engine = engine
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or self._engine.is_ready or scope["path"] == METRICS:
            await self._app(scope, receive, send)
            return
        headers = dict(RETRY_AFTER)
        if origins := self._origins():
            asked = ensure_context(scope, send).headers
            if is_preflight(scope["method"], asked, origins):
                await self._app(scope, receive, send)
                return
            allowed = cors_headers(asked, origins)
            headers |= {name.decode(): value.decode("latin-1") for name, value in allowed}
        phase = self._engine.phase
        body = {"status": phase}
        if scope["path"] != "/health":
            body = error_body(
                503, f"the engine is {phase}: try again in some seconds", code="engine_starting"
            )
        await JSONResponse(body, 503, headers)(scope, receive, send)
