"""All settings of ``agentspec.yaml``, one model per group; ``serve_settings`` has those of server and engine.

``config_file`` and the commands read the values from files, the environment and flags.
"""

from __future__ import annotations

import ipaddress
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agentspec.errors import ConfigError
from agentspec.serve_settings import EngineSettings, Group, ServerSettings, setting
from agentspec.stages import DEFAULT_TENANT, check_tenant
from agentspec.wire import AFFINITY_HEADER, REQUEST_ID_HEADER, STAGE_HEADER

KIB = 1 << 10
MIB = 1 << 20
ENVIRONMENT_PREFIX = "AGENTSPEC_"
DISCOVERY_FILE_VARIABLE = "AGENTSPEC_DISCOVERY_FILE"
# headers of requests to an engine that have another meaning
_TAKEN_HEADERS = frozenset(
    (REQUEST_ID_HEADER, STAGE_HEADER, "x-api-key", "x-data-parallel-rank", "x-forwarded-for")
)
_AFFINITY_HEADER = re.compile(r"x-[a-z0-9-]{1,62}")


class GatewaySettings(Group):
    """Limits of one gateway."""

    body_limit_bytes: int = setting(32 * MIB, "a larger request body gets a 413", ge=1024)
    body_s: float = setting(60.0, "a request body that takes more seconds to arrive gets a 408", gt=0)
    head_s: float = setting(
        10.0,
        "a request head that takes more seconds, from the start of the connection, gets a 408",
        gt=0,
    )
    head_limit_bytes: int = setting(64 * KIB, "a larger head gets a 431", ge=1024)
    max_headers: int = setting(128, "a head with more headers gets a 431", ge=16)
    unread_s: float = setting(
        60.0, "seconds after which a client that reads nothing of its response is dropped (Linux)", ge=1
    )
    num_stage_labels: int = setting(
        100, 'stages per tenant with a label in /metrics, the first seen; the rest is "other"', ge=1
    )


class UpstreamSettings(Group):
    """An engine that runs already: its address, its abilities and its share of the load."""

    url: str = setting(..., "base URL, with or without /v1", example="http://gpu-1:8000")
    name: str = setting(
        "", "name in logs and metrics, by which stages are assigned; default: the URL", example="gpu-1"
    )
    models: tuple[str, ...] = setting(
        (),
        "models that it serves; default: any, preferably those of its /v1/models",
        example=["Qwen/Qwen3-8B"],
    )
    weight: float = setting(1.0, "its share of the load relative to the others", gt=0)
    max_concurrent: int | None = setting(
        None, "requests at a time; more wait in the admission queue; default: no limit", example=64, ge=1
    )
    api_key: str | None = setting(
        None,
        "the engine's own key; replaces the client's Authorization",
        example="${ENGINE_API_KEY}",
        repr=False,
    )
    sends_xargs: bool = setting(True, "tags in the body's vllm_xargs; false for a server that refuses them")
    control_token: str | None = setting(
        None,
        "its $AGENTSPEC_CONTROL_TOKEN, if it runs our plug-in",
        example="${CONTROL_TOKEN}",
        repr=False,
    )
    data_parallel_size: int = setting(
        1, "its --data-parallel-size; from 2 on a stage stays with one rank", ge=1, le=1024
    )
    affinity_header: str = setting(
        AFFINITY_HEADER, "header for affinity; a router may read another, as X-Session-ID"
    )

    @classmethod
    def at(cls, url: str, **values: Any) -> UpstreamSettings:
        """Return the settings of the engine at ``url``. Raises ConfigError if that is no engine's URL."""
        try:
            return cls(url=url, **values)
        except ValidationError as error:
            raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_base = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError as error:
            raise ValueError(f"bad engine URL {url!r}: {error}") from None
        if parts.username is not None:  # the message omits the URL, which would reveal the password
            raise ValueError("an engine URL holds no user and no password")
        if not is_base or parts.query or parts.fragment:
            raise ValueError(f"an engine URL looks like 'http://host:8000', not {url!r}")
        if _is_no_server(parts.hostname or ""):
            raise ValueError(f"{url!r} is no engine: link-local addresses hold a cloud's secrets")
        return url

    @field_validator("affinity_header")
    @classmethod
    def _check_affinity_header(cls, name: str) -> str:
        name = name.lower()
        if not _AFFINITY_HEADER.fullmatch(name) or name in _TAKEN_HEADERS:
            raise ValueError(f"name a header for the router alone, such as 'X-Session-ID', not {name!r}")
        return name

    @property
    def root(self) -> str:
        """The base URL without ``/v1``."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def label(self) -> str:
        """The engine's name; its URL if it has none."""
        return self.name or self.root


class TimeoutSettings(Group):
    """Longest duration of each phase of a request, in seconds."""

    connect_s: float = setting(5.0, "until a connection to an engine is established", gt=0)
    first_byte_s: float = setting(
        600.0, "until the head of a response; without streaming that is the whole generation", gt=0
    )
    idle_s: float = setting(600.0, "between two chunks of a response", gt=0)
    queue_s: float = setting(30.0, "in the admission queue; then a 503", gt=0)


class RetrySettings(Group):
    """Conditions of a retry. A request is retried only while the client has received nothing."""

    num_retries: int = setting(2, "after the first try, each on another engine if there is one", ge=0, le=10)
    statuses: frozenset[int] = setting(
        frozenset((502, 503, 504)), "responses with these statuses are discarded"
    )
    backoff_s: float = setting(
        0.05, "seconds before the first retry; doubles with each, half of it at random", ge=0
    )


class HealthSettings(Group):
    """Rules by which other engines are preferred to one that fails."""

    interval_s: float = setting(
        5.0, "seconds between two probes of /health and /v1/models, where there are several engines", gt=0
    )
    timeout_s: float = setting(2.0, "seconds until a probe fails", gt=0)
    num_failed_looks: int = setting(
        2, "failed probes or connections in a row, after which others are preferred", ge=1
    )


class Policy(StrEnum):
    """Property by which requests are kept on one engine."""

    LEAST_LOAD = "least_load"
    STAGE = "stage"
    SESSION = "session"


class RoutingSettings(Group):
    """Rules that select the engine of a request."""

    policy: Policy = setting(
        Policy.STAGE, "kept on one engine: stage, session (without one, its stage), least_load (nothing)"
    )
    spill: float = setting(
        1.25, "an engine takes at most this multiple of its share before others help", ge=1
    )
    max_waiting: int = setting(
        1024, "requests that wait while every engine is full; one more gets a 429", ge=0
    )
    affinity_key: str = setting(
        "",
        "key of the hash in X-AgentSpec-Affinity, for a router behind; the same in all gateways",
        repr=False,
    )


class FleetSettings(Group):
    """All engines behind one gateway.

    Attributes:
        forwards_authorization: pass the client's ``Authorization`` on; False where it carries a key
            of this gateway.
    """

    upstreams: tuple[UpstreamSettings, ...] = Field(min_length=1)
    routing: RoutingSettings = RoutingSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retries: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    forwards_authorization: bool = True


class KeySettings(Group):
    """An API key, as its digest: ``agentspec key --tenant NAME`` makes a key and prints its entry."""

    sha256: str = setting(
        ...,
        "SHA-256 of the key, in hexadecimal",
        example="${ACME_KEY_SHA256}",
        pattern="^[0-9a-fA-F]{64}$",
        repr=False,
    )
    tenant: str = setting(DEFAULT_TENANT, "tenant that the key belongs to", example="acme")
    requests_per_minute: int | None = setting(
        None, "requests in 60 seconds; default: no limit", example=600, ge=1
    )
    max_concurrent: int | None = setting(None, "requests at a time; default: no limit", example=32, ge=1)


class SharingSettings(Group):
    """A Redis or Valkey server through which several gateways share limits, keys and discovered stages."""

    store: str | None = setting(
        None,
        "redis://HOST:6379/0, or rediss:// for TLS; default: this gateway is alone",
        pattern="^rediss?://",
        repr=False,
    )
    keys: bool = setting(False, "accept the keys in the store (agentspec key --store); then all need a key")


class TracingSettings(Group):
    """Spans by OTLP over HTTP. Without an endpoint OpenTelemetry's own variables decide."""

    endpoint: str | None = setting(
        None,
        "base URL of a collector, http://collector:4318",
        pattern="^https?://[^@]+$",
    )


class DiscoverySettings(Group):
    """Stages of untagged requests, found from the common parts of their prompts; null = they share one."""

    path: Path | None = setting(
        None, "SQLite file of clusters and names, which gateways may share; default: in memory only"
    )
    max_clusters: int = setting(200, "most clusters of one tenant", ge=1)
    keeps_text: bool = setting(
        True,
        "keep templates (masked text) in the file; false: a restart forgets prompts with slots",
    )
    cpu_share: float = setting(0.1, "largest share of one core that is spent on clustering", gt=0, le=1)

    @classmethod
    def from_environment(cls) -> DiscoverySettings:
        """Return the defaults with the file that ``$AGENTSPEC_DISCOVERY_FILE`` names, if set."""
        path = os.environ.get(DISCOVERY_FILE_VARIABLE)
        return cls(path=Path(path) if path else None)


class Settings(BaseSettings):
    """All of ``agentspec.yaml``."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__"
    )

    server: ServerSettings = ServerSettings()
    keys: tuple[KeySettings, ...] = ()
    admin_key_sha256: str | None = setting(
        None,
        "digest of the operator's key for /metrics, saving and loading: agentspec key --admin",
        example="${ADMIN_KEY_SHA256}",
        pattern="^[0-9a-fA-F]{64}$",
        repr=False,
    )
    sharing: SharingSettings = SharingSettings()
    limits: GatewaySettings = GatewaySettings()
    upstreams: tuple[UpstreamSettings, ...] = ()
    engine: EngineSettings = EngineSettings()
    routing: RoutingSettings = RoutingSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retries: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    tracing: TracingSettings = TracingSettings()
    discovery: DiscoverySettings | None = DiscoverySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment precedence over the file."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _check(self) -> Settings:
        tenants: dict[str, str] = {}
        for key in self.keys:
            check_tenant(key.tenant)
            if tenants.setdefault(key.sha256.lower(), key.tenant) != key.tenant:
                raise ValueError(
                    f"one API key is given to two tenants: {tenants[key.sha256.lower()]!r} and {key.tenant!r}"
                )
        if self.sharing.keys and self.sharing.store is None:
            raise ValueError("sharing.keys needs sharing.store: name the Redis server that holds the keys")
        names = [upstream.label for upstream in self.upstreams]
        if len(set(names)) < len(names):
            raise ValueError(f"two upstreams have one name: {sorted(names)}")
        return self


def _is_no_server(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_link_local or address.is_multicast or address.is_unspecified
