"""The deployment ``gateway``: the gateway's application behind Serve's HTTP proxies."""

from __future__ import annotations

import logging

from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentspec.commands.logs import start_logging
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import discovery_of, runtime_config_of, sharing_of, tracing_of
from agentspec.gateway import create_app
from agentspec.gateway.settings import Settings
from agentspec.ray.upstream import RayUpstream
from agentspec.wire import REQUEST_ID_HEADER

REQUEST_ID = REQUEST_ID_HEADER.encode()

logger = logging.getLogger("agentspec")


class OneRequestId:
    """Middleware that drops the gateway's ``X-Request-Id``: Serve adds this header to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""

        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [header for header in message["headers"] if header[0] != REQUEST_ID]
                message = {**message, "headers": kept}
            await send(message)

        await self._app(scope, receive, send_without)


class GatewayReplica:
    """Serves the gateway. ``serve.ingress`` makes a deployment of it, and runs the application's lifespan.

    Args:
        engines: handle of the engine replicas.
    """

    def __init__(self, options: ServeOptions, settings: Settings, engines: DeploymentHandle) -> None:
        start_logging(settings.server.log_level, settings.server.log_format)
        self._options = options
        self._settings = settings
        self._engines = engines
        self._tracing = tracing_of(settings.tracing)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application."""
        settings = self._settings
        sharing = sharing_of(settings.sharing)
        runtime = runtime_config_of(settings, self._options, sharing=sharing)
        if not runtime.keys:
            logger.warning("there is no API key: every client that reaches Serve's HTTP port may use it")
        gateway = create_app(
            RayUpstream(self._engines, settings),
            runtime=runtime,
            discovery=discovery_of(settings),
            tracing=self._tracing,
            sharing=sharing,
        )
        return OneRequestId(gateway)

    def __del__(self) -> None:
        """Send the last spans."""
        tracing = getattr(self, "_tracing", None)  # absent if the constructor failed
        if tracing is not None:
            tracing.close()
