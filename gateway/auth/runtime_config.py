"""What holds now: keys and limits. Everything that looks at them looks here, at each request anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentspec.gateway.auth.api_keys import ApiKeys
from agentspec.gateway.settings import GatewaySettings


@dataclass(slots=True)
class RuntimeConfig:
    """Replaced field by field when the configuration changes; requests under way keep what they began with.

    Attributes:
        admin_key: the digest of the operator's key; None if there is none.
        cors_origins: of web pages that may read answers; "*" = of all.
    """

    keys: ApiKeys = field(default_factory=ApiKeys)
    admin_key: bytes | None = None
    limits: GatewaySettings = field(default_factory=GatewaySettings)
    cors_origins: frozenset[str] = frozenset()
