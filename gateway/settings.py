"""All settings of a gateway, one model per group: names, types, ranges, defaults.

``config_file`` and the commands read the values from files, the environment and options.
"""

from __future__ import annotations

import ipaddress
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agentspec.corpus.reach import parse_reaches
from agentspec.errors import ConfigError
from agentspec.stages import DEFAULT_TENANT, check_tenant
from agentspec.wire import AFFINITY_HEADER, MAX_DRAFT_TOKENS, REQUEST_ID_HEADER, STAGE_HEADER

KIB = 1 << 10
MIB = 1 << 20
ENVIRONMENT_PREFIX = "AGENTSPEC_"
DISCOVERY_FILE_VARIABLE = "AGENTSPEC_DISCOVERY_FILE"
# headers of requests to an engine that have another meaning
_TAKEN_HEADERS = frozenset(
    (REQUEST_ID_HEADER, STAGE_HEADER, "x-api-key", "x-data-parallel-rank", "x-forwarded-for")
)
_AFFINITY_HEADER = re.compile(r"x-[a-z0-9-]{1,62}")
_ORIGIN = re.compile(r"(?!http://[^/]*:80$|https://[^/]*:443$)[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+")


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # it may be secret


class GatewaySettings(_Group):
    """Limits of one gateway.

    Attributes:
        body_limit_bytes: largest request body that is read; a larger one gets a 413.
        body_s: seconds within which a body must arrive.
        head_s: seconds within which a head must arrive, from its first byte or the start of the connection.
        head_limit_bytes, max_headers: limits of a head; a head beyond them gets a 431.
        unread_s: seconds after which a client that does not read its response is dropped (Linux only; read
            at the start only).
        num_stage_labels: number of stages per tenant with their own label in ``/metrics``, the first seen.
            The rest are counted together as ``other``.
        log_bodies: write requests and responses to the log at level debug. Dangerous: every reader of the
            log sees them.
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
    """One engine: its address, its capabilities and its share of the load.

    Attributes:
        url: base URL, with or without ``/v1``.
        name: name in logs and metrics, and for affinity; the URL by default.
        models: models that it serves. Empty: any model, preferably those that its ``/v1/models`` lists.
        weight: its share of the load relative to the others.
        max_concurrent: requests at a time; more wait in the admission queue. None = no limit.
        api_key: the engine's own key; replaces the client's ``Authorization``.
        sends_xargs: put the tags into the body's ``vllm_xargs``; False for a server that rejects
            unknown fields.
        control_token: the engine's ``$AGENTSPEC_CONTROL_TOKEN``, if it runs our plugin and has one.
        data_parallel_size: number of data-parallel ranks behind the URL, vLLM's ``--data-parallel-size``.
            From 2 on, a request names the rank of its stage, unless the client named one.
        affinity_header: header for the affinity of a call, if the URL is a router's that reads another one.
    """

    url: str
    name: str = ""
    models: tuple[str, ...] = ()
    weight: float = Field(default=1.0, gt=0)
    max_concurrent: int | None = Field(default=None, ge=1)
    api_key: str | None = Field(default=None, repr=False)
    sends_xargs: bool = True
    control_token: str | None = Field(default=None, repr=False)
    data_parallel_size: int = Field(default=1, ge=1, le=1024)
    affinity_header: str = AFFINITY_HEADER

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


class TimeoutSettings(_Group):
    """Time limits of each phase of a request, in seconds.

    Attributes:
        connect_s: to open a new connection to an engine.
        first_byte_s: until the head of the response; without streaming, the whole generation.
        idle_s: between two parts of a response.
        queue_s: in the admission queue.
    """

    connect_s: float = Field(default=5.0, gt=0)
    first_byte_s: float = Field(default=600.0, gt=0)
    idle_s: float = Field(default=600.0, gt=0)
    queue_s: float = Field(default=30.0, gt=0)


class RetrySettings(_Group):
    """Conditions for a retry. A request is retried only while the client has received nothing.

    Attributes:
        num_retries: retries after the first try, each on another engine if there is one.
        statuses: statuses of responses that are discarded and retried.
        backoff_s: delay before the first retry. It doubles with each retry, and half of it is random.
    """

    num_retries: int = Field(default=2, ge=0, le=10)
    statuses: frozenset[int] = frozenset((502, 503, 504))
    backoff_s: float = Field(default=0.05, ge=0)


class HealthSettings(_Group):
    """Rules by which an engine counts as failed. Times are in seconds.

    Attributes:
        interval_s: time between two probes of ``/health`` and ``/v1/models``.
        timeout_s: time limit of a probe.
        num_failed_looks: failed probes in a row after which other engines are preferred.
        num_failures: failed requests of one tenant in a row that open its circuit on an engine. Each counts
            once regardless of its tries.
        failing_s: minimum duration of that series of failures.
        open_s: time for which an open circuit sends none of the tenant's requests.
    """

    interval_s: float = Field(default=5.0, gt=0)
    timeout_s: float = Field(default=2.0, gt=0)
    num_failed_looks: int = Field(default=2, ge=1)
    num_failures: int = Field(default=5, ge=1)
    failing_s: float = Field(default=1.0, ge=0)
    open_s: float = Field(default=10.0, gt=0)


class Policy(StrEnum):
    """Property by which requests are kept on one engine."""

    LEAST_LOAD = "least_load"
    STAGE = "stage"
    SESSION = "session"


class RoutingSettings(_Group):
    """Rules that select the engine for a request.

    Attributes:
        policy: property by which requests stay on one engine; a request without a session uses its stage.
        spill: multiple of its share of the load that an engine takes before others help.
        max_waiting: size of the admission queue while every engine is full; beyond it requests get a 429.
        affinity_key: key of the hash in ``X-AgentSpec-Affinity``; the same in all gateways.
    """

    policy: Policy = Policy.STAGE
    spill: float = Field(default=1.25, ge=1)
    max_waiting: int = Field(default=1024, ge=0)
    affinity_key: str = Field(default="", repr=False)


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
    """One API key, stored only as its digest; ``agentspec key`` creates one.

    Attributes:
        sha256: SHA-256 of the key, in hexadecimal.
        tenant: tenant that the key belongs to.
        requests_per_minute, max_concurrent: None = no limit.
    """

    sha256: str = Field(pattern="^[0-9a-fA-F]{64}$", repr=False)
    tenant: str = DEFAULT_TENANT
    requests_per_minute: int | None = Field(default=None, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)


class SharingSettings(_Group):
    """What this gateway shares with others.

    Attributes:
        store: ``redis://`` or ``rediss://`` URL, which may hold a password. Gateways with the same store
            share the limits of the API keys that they have in common, and discovered stages. None = this
            gateway is alone.
        keys: accept the API keys in the store as well (``agentspec key --store``). Then every request needs
            a key.
    """

    store: str | None = Field(default=None, pattern="^rediss?://", repr=False)
    keys: bool = False


class ServerSettings(_Group):
    """The gateway's address, shutdown and logs.

    Attributes:
        allow_open: confirms that a public address without any key is intended.
        grace_s: seconds that calls in flight get to finish at shutdown.
        record: file to which every call is appended, with its whole content; None = no recording.
        cors_origins: origins of web pages that may read responses; "*" = all pages.
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
        """Check for the form that browsers send: no path, no capitals, no default port of the scheme."""
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"an origin looks like 'https://app.example:8443', or is '*', not {origin!r}"
                )
        return origins


class TracingSettings(_Group):
    """The destination of spans.

    Unless this or OpenTelemetry's own environment sets one, there are no spans and no cost.

    Attributes:
        endpoint: base URL of a collector that takes OTLP over HTTP.
    """

    endpoint: str | None = Field(default=None, pattern="^https?://[^@]+$")


class EngineSettings(_Group):
    """The engine that ``agentspec serve`` starts itself. Names and meanings are those of its options.

    Attributes:
        corpus: place of shared outputs; its URL may hold a password.
        corpus_snapshots: URL of an object store that keeps the snapshots of the corpus.
        corpus_stages: how far the outputs of a stage, and of all below it, travel (default: fleet). A text is
            parsed as that of the option.
        corpus_host: folder for the outputs of stages that do not leave this machine.
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
    corpus: str | None = Field(default=None, repr=False)
    corpus_snapshots: str | None = Field(default=None, repr=False)
    corpus_stages: dict[str, Literal["none", "host", "fleet"]] | None = None
    corpus_host: str | None = Field(default=None, min_length=1)
    draft: Literal["chain", "tree", "off"] | None = None
    draft_model: str | None = Field(default=None, min_length=1)
    hybrid_threshold: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    slots: int | None = Field(default=None, ge=1)
    kv_cache_mb: int | None = Field(default=None, ge=1, le=1 << 24)
    threads: int | None = Field(default=None, ge=1)
    device: str | None = Field(default=None, pattern="^(cpu|cuda|mps|xpu)(:[0-9]+)?$")
    trace: str | None = None
    zero_hop: bool | None = None
    engine_only: bool | None = None
    engine_port: int | None = Field(default=None, ge=0, le=65535)
    engine_start_timeout_s: float | None = Field(default=None, gt=0)
    arguments: tuple[str, ...] = ()

    @field_validator("corpus_stages", mode="before")
    @classmethod
    def _parse_reaches(cls, given: Any) -> Any:
        try:
            return parse_reaches(given) if isinstance(given, str) else given
        except ConfigError as error:
            raise ValueError(str(error)) from None


class DiscoverySettings(_Group):
    """Settings of stage discovery.

    Attributes:
        path: SQLite file that keeps clusters and their names; None = in memory only.
        max_clusters: most clusters of one tenant.
        keeps_text: keep templates (masked text) in the file. If False, prompts with slots are not recognised
            after a restart until their template is found again.
        cpu_share: largest share of one core that is spent on clustering.
        save_every_s: interval at which counts are written; new clusters are written immediately.
    """

    path: Path | None = None
    max_clusters: int = Field(default=200, ge=1)
    keeps_text: bool = True
    cpu_share: float = Field(default=0.1, gt=0, le=1)
    save_every_s: float = Field(default=5.0, gt=0)

    @classmethod
    def from_environment(cls) -> DiscoverySettings:
        """Return the defaults with the file that ``$AGENTSPEC_DISCOVERY_FILE`` names, if set."""
        path = os.environ.get(DISCOVERY_FILE_VARIABLE)
        return cls(path=Path(path) if path else None)


class Settings(BaseSettings):
    """All of ``agentspec.yaml``.

    Attributes:
        admin_key_sha256: SHA-256 of the operator's key.
        engine: the engine that this process starts, as opposed to ``upstreams``.
        upstreams: engines that run already.
        discovery: discovery of stages that requests do not name; null = they share one.
        sharing: with other gateways.
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
    sharing: SharingSettings = SharingSettings()

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
