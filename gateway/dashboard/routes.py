"""The page at ``/ui`` and the stream of figures behind it, ``GET /agentspec/events``.

The page is one file with nothing in it but itself: whoever can reach the gateway can open it. The figures are
a tenant's, and need its key or the operator's, like all of ``/agentspec/``.
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

from agentspec.gateway.auth.middleware import TENANT_KEY, UI_PATH
from agentspec.gateway.auth.runtime_config import RuntimeConfig
from agentspec.gateway.dashboard.live_feed import LiveFeed
from agentspec.gateway.http.api_response import EVENT_STREAM_HEADERS, ApiResponse
from agentspec.gateway.http.cancellation import CancelScope, ClientGoneError, ended_before
from agentspec.gateway.http.graceful_shutdown import GracefulShutdown
from agentspec.gateway.http.response_writer import AsgiResponseWriter

EVENTS_PATH = "/agentspec/events"
PAGE_FILE = Path(__file__).with_name("ui.html")


def ui_routes(lookout: LiveFeed, runtime: RuntimeConfig, shutdown: GracefulShutdown) -> list[Route]:
    """The page, and what it reads."""
    text = PAGE_FILE.read_text(encoding="utf-8")
    headers = {"content-security-policy": content_security_policy(text), **_HEADERS}

    async def page(request: Request) -> Response:
        return Response(text, media_type="text/html", headers=headers)

    return [
        Route(UI_PATH, page),
        Route(EVENTS_PATH, Events(lookout, runtime, shutdown), methods=["GET"]),
    ]


class Events:
    """Live figures until the client leaves, the keys change or the server is to end.

    A tenant's, or all tenants' for an operator.
    """

    def __init__(self, lookout: LiveFeed, runtime: RuntimeConfig, shutdown: GracefulShutdown) -> None:
        self._lookout = lookout
        self._runtime = runtime
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The stream. Raises RateLimitError, before anything is sent, if the tenant has too many."""
        tenant = scope[TENANT_KEY]
        self._lookout.check_room(tenant)
        response, cancel_scope = ApiResponse(AsgiResponseWriter(send)), CancelScope()

        async def tell() -> None:
            cancel_scope.cancel_on_disconnect(scope, receive)
            await self._tell(tenant, response)

        with suppress(ClientGoneError):  # as every such stream ends
            await cancel_scope.run(tell())

    async def _tell(self, tenant: str | None, response: ApiResponse) -> None:
        await response.start(200, EVENT_STREAM_HEADERS)
        await ended_before(self._shutdown.begun, self._write(tenant, response))
        await response.end()

    async def _write(self, tenant: str | None, response: ApiResponse) -> None:
        keys = self._runtime.keys
        async with aclosing(self._lookout.events(tenant)) as events:
            async for event in events:
                if self._runtime.keys is not keys:  # whoever still has one may ask again
                    return
                await response.write(event)


def content_security_policy(page: str) -> str:
    """The page's own script, style and icon alone, by hashes; it talks to this server only, in no frame.

    Trusted types: no text ever becomes markup, whatever the script would like.
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


_HEADERS = {
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
