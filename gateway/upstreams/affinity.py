"""The affinity of a call: calls of one affinity should be served by one engine.

The gateway chooses its engines by it, and sends a hash of it for a router between gateway and engines.
"""

from __future__ import annotations

from hashlib import blake2b

from agentspec.gateway.call import ApiCall
from agentspec.gateway.settings import Policy, RoutingSettings

_DIGEST_BYTES = 16


def affinity_of(call: ApiCall, policy: Policy) -> str | None:
    """Return what a call has in common with those that belong to the same engine; None = nothing."""
    if call.tags is None or policy is Policy.LEAST_LOAD:
        return None
    if policy is Policy.SESSION and call.tags.session:
        return f"{call.tenant}\0{call.tags.session}"
    return str(call.tags.stage)


def affinity_header(call: ApiCall, routing: RoutingSettings) -> str | None:
    """Return the value of ``X-AgentSpec-Affinity`` for a router; None = the call may go to any engine.

    It is a keyed hash of the model and the affinity, 32 hexadecimal digits: no name of a tenant, stage or
    session is in it. Gateways with equal keys send equal values.
    """
    affinity = affinity_of(call, routing.policy)
    if affinity is None:
        return None
    key = blake2b(routing.affinity_key.encode()).digest()
    content = f"{call.model or ''}\0{affinity}".encode()
    return blake2b(content, key=key, digest_size=_DIGEST_BYTES).hexdigest()
