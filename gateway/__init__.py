"""The OpenAI-compatible gateway, imported as ``agentspec.gateway``.

Life of a request: ``stages.read_tags`` strips ``/stages/<path>``. ``telemetry`` assigns the request id, then
times and logs the call. ``auth`` finds the tenant. ``handler`` reads the body and its tags. An
``Upstream`` answers: ``embedded`` (an engine in this process) or ``fleet`` (any OpenAI-compatible servers).
"""

from __future__ import annotations

from agentspec.gateway.app import create_app
from agentspec.gateway.auth.api_keys import ApiKeys, RuntimeConfig
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.engine_process.child_process import EngineCommand
from agentspec.gateway.engine_process.supervisor import EngineSupervisor, EngineTimeouts, run_until_signal
from agentspec.gateway.http.cancellation import GracefulShutdown
from agentspec.gateway.server import serve
from agentspec.gateway.settings import (
    DiscoverySettings,
    FleetSettings,
    GatewaySettings,
    TimeoutSettings,
    UpstreamSettings,
)
from agentspec.gateway.telemetry.recorder import Recorder
from agentspec.gateway.upstreams.embedded import EmbeddedUpstream
from agentspec.gateway.upstreams.fleet import Fleet
from agentspec.gateway.upstreams.upstream import Upstream

__all__ = [
    "ApiKeys",
    "Discovery",
    "DiscoverySettings",
    "EmbeddedUpstream",
    "EngineCommand",
    "EngineSupervisor",
    "EngineTimeouts",
    "Fleet",
    "FleetSettings",
    "GatewaySettings",
    "GracefulShutdown",
    "Recorder",
    "RuntimeConfig",
    "TimeoutSettings",
    "Upstream",
    "UpstreamSettings",
    "create_app",
    "run_until_signal",
    "serve",
]
