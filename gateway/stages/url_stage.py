"""Stages in the URL, ``/stages/<path>/v1/...``, for clients that can only set a base URL."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.gateway.http.context import ensure_context
from agentspec.wire import STAGE_URL_PREFIX


class StageUrlMiddleware:
    """Strips the prefix from the path; the stage, still encoded, is stored in the context's ``url_stage``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the plain path if it had a stage prefix."""
        if scope["type"] == "http":
            scope, url_stage = _without_stage(scope)
            ensure_context(scope, send).url_stage = url_stage
        await self._app(scope, receive, send)


def _without_stage(scope: Scope) -> tuple[Scope, str | None]:
    """Return the scope with the plain path, and the stage, or None if the path has no stage prefix."""
    if not scope["path"].startswith(STAGE_URL_PREFIX):
        return scope, None
    # the raw path: the decoded one does not distinguish an encoded "/v1/" from the real one
    raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    stage, found, rest = raw.removeprefix(STAGE_URL_PREFIX).rpartition("/v1/")
    if not found:
        return scope, None
    path = f"/v1/{rest}"
    return {**scope, "path": unquote(path), "raw_path": path.encode("latin-1")}, stage
