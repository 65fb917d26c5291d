"""Stages in the URL, ``/stages/<path>/v1/...``, for clients that can only set a base URL."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.wire import STAGE_URL_PREFIX

URL_STAGE_KEY = "agentspec.url_stage"


class StageUrlMiddleware:
    """Strips the prefix from the path; the stage, still encoded, is stored in ``scope[URL_STAGE_KEY]``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the plain path if it had a stage prefix."""
        if scope["type"] == "http" and scope["path"].startswith(STAGE_URL_PREFIX):
            # the raw path: the decoded one does not distinguish an encoded "/v1/" from the real one
            raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
            stage, found, rest = raw.removeprefix(STAGE_URL_PREFIX).rpartition("/v1/")
            if found:
                path = f"/v1/{rest}"
                scope = {
                    **scope,
                    "path": unquote(path),
                    "raw_path": path.encode("latin-1"),
                    URL_STAGE_KEY: stage,
                }
        await self._app(scope, receive, send)
