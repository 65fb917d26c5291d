"""Everything about a gateway that can be set, each group a model: names, types, ranges, defaults.

Where the values come from (a file, the environment, options) is ``config_file``'s and the commands' business.
"""

from __future__ import annotations

import ipaddress
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agentspec.errors import ConfigError
from agentspec.stages import DEFAULT_TENANT, check_tenant
from agentspec.wire import MAX_DRAFT_TOKENS

KIB = 1 << 10
MIB = 1 << 20
ENVIRONMENT_PREFIX = "AGENTSPEC_"
DISCOVERY_FILE_VARIABLE = "AGENTSPEC_DISCOVERY_FILE"
_ORIGIN = re.compile(r"(?!http://[^/]*:80$|https://[^/]*:443$)[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+")


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GatewaySettings(_Group):
    """Limits of one gateway.

    Attributes:
        body_limit_bytes: largest request body that is read; a larger one gets a 413.
        body_s: seconds in which a body must have come.
        head_s: seconds in which a request's head must have come, from its first moment or the connection's.
        head_limit_bytes, max_headers: a larger head, or one with more headers, gets a 431.
        unread_s: a client that takes nothing of its answer for so many seconds is dropped (on Linux; it is
            read at the start only).
        num_stage_labels: so many stages per tenant get their own label in ``/metrics``, those seen
            first; the rest are counted together as ``other``.
        log_bodies: requests and answers stand in the log at level debug, for whoever reads it: dangerous.
    """

    body_limit_bytes: int = Field(default=32 * MIB, ge=1024)
    body_s: float = Field(default=60.0, gt=0)
    head_s: float = Field(default=10.0, gt=0)
    head_limit_bytes: int = Field(default=64 * KIB, ge=1024)
    max_headers: int = Field(default=128, ge=16)
    unread_s: float = Field(default=60.0, ge=1)
    num_stage_labels: int = Field(default=100, ge=1)
    log_bodies: bool = False


class UpstreamSettings(_Group):
    """One engine: where it is, what it is sent, and how much of the load it takes.

    Attributes:
        url: base URL, with or without ``/v1``.
        name: in logs, metrics and for affinity; the URL by default.
        models: those it serves. Empty: whatever is asked for, but rather what its ``/v1/models`` lists.
        weight: its share of the load beside the others.
        max_concurrent: requests at a time; more wait in line. None = no limit.
        api_key: the engine's own key; replaces the client's ``Authorization``.
        sends_xargs: put the tags into the body's ``vllm_xargs``; False for a server that refuses
            fields it does not know.
        control_token: the engine's ``$AGENTSPEC_CONTROL_TOKEN``, if it runs our plugin and has one.
    """

    url: str
    name: str = ""
    models: tuple[str, ...] = ()
    weight: float = Field(default=1.0, gt=0)
    max_concurrent: int | None = Field(default=None, ge=1)
    api_key: str | None = Field(default=None, repr=False)
    sends_xargs: bool = True
    control_token: str | None = Field(default=None, repr=False)

    @property
    def root(self) -> str:
        """The URL that ``/v1/...`` is added to. Raises ConfigError if it is no http URL of a server."""
        try:
            parts = urlsplit(self.url)
            is_base = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError as error:
            raise ConfigError(f"bad engine URL {self.url!r}: {error}") from None
        if parts.username is not None:  # and not show it: this URL stands in logs and in errors
            raise ConfigError("an engine URL holds no user and no password")
        if not is_base or parts.query or parts.fragment:
            raise ConfigError(f"an engine URL looks like 'http://host:8000', not {self.url!r}")
        if _is_no_server(parts.hostname or ""):
            raise ConfigError(f"{self.url!r} is no engine: link-local addresses hold a cloud's secrets")
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def label(self) -> str:
        """Its name; the URL if it has none."""
        return self.name or self.root


class TimeoutSettings(_Group):
    """Seconds that each phase of a request may take.

    Attributes:
        connect_s: until a new connection to an engine stands.
        first_byte_s: until the head of the answer is there; without streaming that is the whole generation.
        idle_s: between two parts of an answer.
        queue_s: in line for an engine that has room.
    """

    connect_s: float = Field(default=5.0, gt=0)
    first_byte_s: float = Field(default=600.0, gt=0)
    idle_s: float = Field(default=600.0, gt=0)
    queue_s: float = Field(default=30.0, gt=0)


class RetrySettings(_Group):
    """When a request is tried again: as long as the client has got nothing of an answer.

    Attributes:
        num_retries: beside the first try; each goes to another engine, if there is one.
        statuses: answers that count as no answer.
        backoff_s: before the first retry; it doubles with each, and half of it is drawn at random.
    """

    num_retries: int = Field(default=2, ge=0, le=10)
    statuses: frozenset[int] = frozenset((502, 503, 504))
    backoff_s: float = Field(default=0.05, ge=0)


class HealthSettings(_Group):
    """How it is found out that an engine is out of order.

    Attributes:
        interval_s: between two looks at ``/health`` and ``/v1/models``.
        timeout_s: of such a look.
        num_failed_looks: in a row, after which others are preferred.
        num_failures: requests of a tenant that fail in a row, each once whatever its tries, after which
            none of that tenant is sent for ``open_s``; if nothing else came back for ``failing_s``.
    """

    interval_s: float = Field(default=5.0, gt=0)
    timeout_s: float = Field(default=2.0, gt=0)
    num_failed_looks: int = Field(default=2, ge=1)
    num_failures: int = Field(default=5, ge=1)
    failing_s: float = Field(default=1.0, ge=0)
    open_s: float = Field(default=10.0, gt=0)


class Policy(StrEnum):
    """What a request is kept together with."""

    LEAST_LOAD = "least_load"
    STAGE = "stage"
    SESSION = "session"


class RoutingSettings(_Group):
    """Which engine gets a request.

    Attributes:
        policy: what stays together on one engine; a request with no session goes by its stage.
        spill: an engine takes at most so many times its share before others help.
        max_waiting: requests in line while every engine is full; more are refused with a 429.
    """

    policy: Policy = Policy.STAGE
    spill: float = Field(default=1.25, ge=1)
    max_waiting: int = Field(default=1024, ge=0)


class FleetSettings(_Group):
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


class KeySettings(_Group):
    """One API key, by its digest alone; ``agentspec key`` makes one.

    Attributes:
        sha256: of the key, in hexadecimal.
        tenant: whose it is.
        requests_per_minute, max_concurrent: None = no limit.
    """

    sha256: str = Field(pattern="^[0-9a-fA-F]{64}$", repr=False)
    tenant: str = DEFAULT_TENANT
    requests_per_minute: int | None = Field(default=None, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)


class ServerSettings(_Group):
    """Where the gateway listens, and how it ends and tells of itself.

    Attributes:
        allow_open: a public address without any key is meant.
        grace_s: seconds that requests under way get to finish at shutdown.
        record: a file that every call is appended to, with all that was said; None = none.
        cors_origins: web pages that may read answers, by origin; "*" = all pages.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    allow_open: bool = False
    grace_s: float = Field(default=5.0, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    record: str | None = None
    cors_origins: tuple[str, ...] = ()

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """As browsers write them: no path, no capitals, no port that the scheme has anyway."""
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"an origin looks like 'https://app.example:8443', or is '*', not {origin!r}"
                )
        return origins


class TracingSettings(_Group):
    """Where spans go; nowhere, and at no cost, unless this or OpenTelemetry's own environment says so.

    Attributes:
        endpoint: base URL of a collector that takes OTLP over HTTP.
    """

    endpoint: str | None = Field(default=None, pattern="^https?://[^@]+$")


class EngineSettings(_Group):
    """The engine that ``agentspec serve`` starts itself. Names and meanings are its options'.

    Attributes:
        arguments: vLLM's own options, as on its command line.
    """

    engine: Literal["auto", "torch", "vllm", "replay"] | None = None
    model: str | None = None
    served_model_name: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)
    dtype: str | None = None
    max_draft: int | None = Field(default=None, ge=0, le=MAX_DRAFT_TOKENS)
    rule: Literal["learned", "paper"] | None = None
    price: float | None = Field(default=None, ge=0, le=1)
    stage_budget_mb: int | None = Field(default=None, ge=1, le=1 << 24)
    forest_file: str | None = None
    forest_folder: str | None = None
    strict_forest: bool | None = None
    save_every_s: float | None = Field(default=None, gt=0)
    draft: Literal["chain", "tree", "off"] | None = None
    slots: int | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)
    device: str | None = Field(default=None, pattern="^(cpu|cuda|mps|xpu)(:[0-9]+)?$")
    trace: str | None = None
    zero_hop: bool | None = None
    engine_port: int | None = Field(default=None, ge=0, le=65535)
    engine_start_timeout_s: float | None = Field(default=None, gt=0)
    arguments: tuple[str, ...] = ()


class DiscoverySettings(_Group):
    """How stages are discovered.

    Attributes:
        path: SQLite file that keeps clusters and their names; None = as long as this process lives.
        max_clusters: of one tenant.
        keeps_text: keep templates (masked text) in the file. Without, prompts with slots are not recognised
            after a restart until their template was found again.
        cpu_share: of one core, at most so much is spent on finding clusters.
        save_every_s: counts are written so often; what was found, at once.
    """

    path: Path | None = None
    max_clusters: int = Field(default=200, ge=1)
    keeps_text: bool = True
    cpu_share: float = Field(default=0.1, gt=0, le=1)
    save_every_s: float = Field(default=5.0, gt=0)

    @classmethod
    def from_environment(cls) -> DiscoverySettings:
        """With the file that ``$AGENTSPEC_DISCOVERY_FILE`` names, if it names one."""
        path = os.environ.get(DISCOVERY_FILE_VARIABLE)
        return cls(path=Path(path) if path else None)


class Settings(BaseSettings):
    """The whole of ``agentspec.yaml``.

    Attributes:
        admin_key_sha256: of the operator's key.
        engine: what is started here, or
        upstreams: what runs already.
        discovery: of stages that requests do not name; null = they share one.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__"
    )

    server: ServerSettings = ServerSettings()
    keys: tuple[KeySettings, ...] = ()
    admin_key_sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$", repr=False)
    limits: GatewaySettings = GatewaySettings()
    engine: EngineSettings = EngineSettings()
    upstreams: tuple[UpstreamSettings, ...] = ()
    routing: RoutingSettings = RoutingSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retries: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    discovery: DiscoverySettings | None = DiscoverySettings()
    tracing: TracingSettings = TracingSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment before the file."""
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
        for upstream in self.upstreams:
            _ = upstream.root
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
