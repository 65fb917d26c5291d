"""CORS: web pages of the origins that the settings name may be clients; none by default.

Keys travel in headers and not in cookies. So no response allows credentials, and ``"*"`` can stand for every
page.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.gateway.http.api_response import ApiResponse, RawHeader
from agentspec.gateway.http.context import ensure_context

ANY_ORIGIN = "*"
METHODS = b"GET, HEAD, POST, PATCH, DELETE"
PREFLIGHT_SECONDS = b"600"  # for which a browser may cache the answer


class CorsMiddleware:
    """Answers browsers' preflight requests, and lets pages read every response, errors too.

    The response writer gets the headers once per request. Parts of a response are not wrapped.
    """

    def __init__(self, app: ASGIApp, origins: Callable[[], frozenset[str]]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it is a preflight request of an allowed page."""
        origins = self._origins()
        if origins and scope["type"] == "http":
            context = ensure_context(scope, send)
            context.writer.headers += cors_headers(context.headers, origins)
            if is_preflight(scope["method"], context.headers, origins):
                response = ApiResponse(context.writer)
                await response.start(204, _of_preflight(context.headers))
                await response.end()
                return
        await self._app(scope, receive, send)


def cors_headers(headers: Headers, origins: frozenset[str]) -> list[RawHeader]:
    """Return the headers that let the requesting page read the response."""
    allowed = _allowed_origin(headers, origins)
    varies = [] if ANY_ORIGIN in origins else [(b"vary", b"origin")]
    if allowed is None:
        return varies
    return [
        (b"access-control-allow-origin", allowed.encode("latin-1")),
        (b"access-control-expose-headers", b"*"),
        *varies,
    ]


def is_preflight(method: str, headers: Headers, origins: frozenset[str]) -> bool:
    """Return True for a preflight request, which carries no key, of an allowed page."""
    asks = method == "OPTIONS" and "access-control-request-method" in headers
    return asks and _allowed_origin(headers, origins) is not None


def _allowed_origin(headers: Headers, origins: frozenset[str]) -> str | None:
    origin = headers.get("origin")
    if origin is None:
        return None
    if ANY_ORIGIN in origins:
        return ANY_ORIGIN
    return origin if origin in origins else None


def _of_preflight(asked: Headers) -> list[RawHeader]:
    headers: list[RawHeader] = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", PREFLIGHT_SECONDS),
    ]
    wanted = asked.get("access-control-request-headers")
    if wanted:  # "*" would not cover Authorization
        headers.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    return [*headers, (b"vary", b"access-control-request-headers")]
