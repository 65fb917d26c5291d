"""The OpenAI-compatible gateway. Imported as ``agentspec.gateway``.

A request's way: ``url_stage`` strips ``/stages/<path>``, ``request_id`` names it, ``observed`` times it
and tells of it (by its ``call_record``), ``auth`` finds its tenant, ``calls`` reads the body and its
``tags``, and an ``Upstream`` answers: ``embedded`` (an engine in this process) or ``fleet`` (any
OpenAI-compatible servers).
"""

from __future__ import annotations

from agentspec.gateway.api_keys import ApiKeys
from agentspec.gateway.app import create_app
from agentspec.gateway.discovery import Discovery, DiscoverySettings
from agentspec.gateway.drain import Drain
from agentspec.gateway.embedded import EmbeddedUpstream
from agentspec.gateway.engine_child import EngineCommand
from agentspec.gateway.engine_process import EngineProcess, Patience, run_until_signal
from agentspec.gateway.fleet import Fleet
from agentspec.gateway.recorder import Recorder
from agentspec.gateway.rules import Rules
from agentspec.gateway.server import serve
from agentspec.gateway.settings import FleetSettings, GatewaySettings, TimeoutSettings, UpstreamSettings
from agentspec.gateway.upstream import Upstream

__all__ = [
    "ApiKeys",
    "Discovery",
    "DiscoverySettings",
    "Drain",
    "EmbeddedUpstream",
    "EngineCommand",
    "EngineProcess",
    "Fleet",
    "FleetSettings",
    "GatewaySettings",
    "Patience",
    "Recorder",
    "Rules",
    "TimeoutSettings",
    "Upstream",
    "UpstreamSettings",
    "create_app",
    "run_until_signal",
    "serve",
]
