"""Routes of the dashboard: the page at ``/ui`` and its live feed, ``GET /agentspec/events``.

The page is one file without data, open to every client that can reach the gateway. The feed belongs to a
tenant, and requires its key or the operator's, like all of ``/agentspec/``.
"""

from __future__ import annotations

import base64
import re
from contextlib import aclosing, suppress
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentspec.gateway.auth.api_keys import RuntimeConfig
from agentspec.gateway.auth.middleware import UI_PATH
from agentspec.gateway.dashboard.live_feed import LiveFeed
from agentspec.gateway.errors import ShuttingDownError
from agentspec.gateway.http.api_response import EVENT_STREAM_HEADERS, ApiResponse, AsgiResponseWriter
from agentspec.gateway.http.cancellation import CancelScope, ClientGoneError, GracefulShutdown
from agentspec.gateway.http.context import context_of
from agentspec.wire import OWN_PREFIX

EVENTS_PATH = f"{OWN_PREFIX}events"
PAGE_FILE = Path(__file__).with_name("ui.html")
_HEADERS = {
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


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
