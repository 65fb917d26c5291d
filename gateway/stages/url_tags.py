"""Tags in the URL, for clients that can only set a base URL.

``/stages/<path>/v1/...`` names the stage and ``/workflows/<path>/v1/...`` the workflow of a call.
``/sessions/<id>`` before either, or before ``/v1``, names the session.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.gateway.http.context import NO_URL_TAGS, UrlTags, ensure_context
from agentspec.wire import SESSION_URL_PREFIX, STAGE_URL_PREFIX, WORKFLOW_URL_PREFIX

_PREFIXES = (STAGE_URL_PREFIX, WORKFLOW_URL_PREFIX, SESSION_URL_PREFIX)
_API = "/v1/"


class UrlTagsMiddleware:
    """Strips the tags from the path; they are stored, still encoded, in the context's ``url_tags``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the plain path if it had tags."""
        if scope["type"] == "http":
            scope, tags = _without_tags(scope)
            ensure_context(scope, send).url_tags = tags
        await self._app(scope, receive, send)


def _without_tags(scope: Scope) -> tuple[Scope, UrlTags]:
    """Return the scope with the plain path, and the tags; the scope itself if the path has none."""
    if not scope["path"].startswith(_PREFIXES):
        return scope, NO_URL_TAGS
    # the raw path: the decoded one does not distinguish an encoded "/v1/" from the real one
    raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    named, found, rest = raw.rpartition(_API)
    tags = _read(named) if found else None
    if tags is None:
        return scope, NO_URL_TAGS
    path = f"{_API}{rest}"
    return {**scope, "path": unquote(path), "raw_path": path.encode("latin-1")}, tags


def _read(named: str) -> UrlTags | None:
    """Return the tags in the part of the path before the API's; None if it is no such part."""
    session = None
    if named.startswith(SESSION_URL_PREFIX):
        session, slash, rest = named.removeprefix(SESSION_URL_PREFIX).partition("/")
        named = f"/{rest}" if slash else ""
    if not named:
        return UrlTags(session=session)
    if named.startswith(WORKFLOW_URL_PREFIX) and f"{named}/".endswith(_API):
        return None  # a client has added /v1 to a base URL that ends in it
    for prefix, name in ((STAGE_URL_PREFIX, "stage"), (WORKFLOW_URL_PREFIX, "workflow")):
        if named.startswith(prefix):
            return UrlTags(session=session, **{name: named.removeprefix(prefix)})
    return None
