"""Keys and limits in force. Every request reads them anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentspec.gateway.auth.api_keys import ApiKeys
from agentspec.gateway.settings import GatewaySettings


@dataclass(slots=True)
class RuntimeConfig:
    """The configuration in force. A reload replaces it field by field.

    Requests in flight keep the values that they started with.

    Attributes:
        admin_key: digest of the operator's key; None if there is none.
        cors_origins: origins of web pages that may read responses; "*" = all.
    """

    keys: ApiKeys = field(default_factory=ApiKeys)
    admin_key: bytes | None = None
    limits: GatewaySettings = field(default_factory=GatewaySettings)
    cors_origins: frozenset[str] = frozenset()
