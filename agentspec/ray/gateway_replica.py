"""The deployment ``gateway``: the gateway's application behind Serve's HTTP proxies."""

from __future__ import annotations

import logging

from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from agentspec.commands.logs import start_logging
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import runtime_config_of, tracing_of
from agentspec.gateway import Discovery, create_app
from agentspec.gateway.settings import Settings
from agentspec.ray.upstream import RayUpstream

logger = logging.getLogger("agentspec")


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

    def __serve_build_asgi_app__(self) -> ASGIApp:  # noqa: N807 - Serve's name
        """Return the application."""
        settings = self._settings
        runtime = runtime_config_of(settings, self._options)
        if not runtime.keys:
            logger.warning("there is no API key: every client that reaches Serve's HTTP port may use it")
        return create_app(
            RayUpstream(self._engines, settings),
            runtime=runtime,
            discovery=Discovery(settings.discovery) if settings.discovery else None,
            tracing=self._tracing,
        )

    def __del__(self) -> None:
        """Send the last spans."""
        if self._tracing is not None:
            self._tracing.close()
