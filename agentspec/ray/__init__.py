"""AgentSpec on a Ray cluster: ``serve run agentspec.ray:app``; see docs/ray.md.

Two deployments: ``gateway`` runs the gateway's application, ``engine`` hosts one engine in each replica. The
gateway's upstream is a handle of the engines. Needs the extra ``ray``.
"""

from __future__ import annotations

from agentspec.ray.application import app

__all__ = ["app"]
