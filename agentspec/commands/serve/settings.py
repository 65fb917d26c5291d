"""The settings of ``agentspec serve``: flags override the environment, and both override the file."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from agentspec.commands.serve.options import ServeOptions
from agentspec.corpus.settings import without_password
from agentspec.errors import ConfigError
from agentspec.extras import needed
from agentspec.gateway.auth.api_keys import (
    API_KEYS_VARIABLE,
    ApiKey,
    ApiKeys,
    RuntimeConfig,
    digest_of,
    parse_keys,
)
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.settings import (
    FleetSettings,
    Settings,
    SharingSettings,
    TracingSettings,
    UpstreamSettings,
)
from agentspec.serve_settings import SECRETS, EngineSettings
from agentspec.vllm_plugin.control import TOKEN_VARIABLE

if TYPE_CHECKING:
    from agentspec.gateway.sharing.service import Sharing
    from agentspec.gateway.telemetry.tracing import Tracing

logger = logging.getLogger("agentspec")

ENGINE_API_KEY_VARIABLE = "AGENTSPEC_ENGINE_API_KEY"
COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
HIDDEN = "(hidden)"


def read_settings(options: ServeOptions, raw: bytes | None = None) -> Settings:
    """Return the settings in force: the file's, the environment's, and the flags before both.

    ``raw``: the file's content, if it was read already.

    Raises:
        ConfigError: a setting is wrong, or there are both running engines and one to be started.
    """
    settings = load_settings(options.config, raw)
    changes: dict[str, Any] = {}
    if options.engine_url:
        changes["upstreams"] = (_running_engine(options.engine_url, options),)
    if changes.get("upstreams", settings.upstreams) and settings.engine != EngineSettings():
        raise ConfigError(
            "the configuration names engines that run (upstreams) and one to be started (engine)"
        )
    if options.unknown:
        arguments = (*settings.engine.arguments, *options.unknown)
        changes["engine"] = settings.engine.model_copy(update={"arguments": arguments})
    for group, given in options.given.items():
        before = changes.get(group, getattr(settings, group))
        changes[group] = before.model_copy(update=given)
    return settings.model_copy(update=changes)


def runtime_config_of(
    settings: Settings,
    options: ServeOptions,
    before: RuntimeConfig | None = None,
    sharing: Sharing | None = None,
) -> RuntimeConfig:
    """Return keys and limits; ``sharing`` is needed once. Raises ConfigError, StageError."""
    keys = [ApiKey.of(key) for key in settings.keys]
    known = {key.digest for key in keys}
    keys += [key for key in parse_keys(given_keys(options)) if key.digest not in known]
    if options.admin_key == "":
        raise ConfigError("--admin-key is empty: give it a key, or leave it out")
    admin = digest_of(options.admin_key) if options.admin_key else None
    if admin is None and settings.admin_key_sha256:
        admin = bytes.fromhex(settings.admin_key_sha256)
    origins = frozenset(settings.server.cors_origins)
    in_force = ApiKeys(
        keys,
        None if before is None else before.keys,
        make_limits=None if sharing is None else sharing.limits_of,
        are_needed=settings.sharing.keys and before is None,  # later it is as it was at the start
    )
    if "*" in origins and not in_force:
        logger.warning(
            "every web page can use this gateway: server.cors_origins has '*', and there are no keys"
        )
    return RuntimeConfig(in_force, admin, settings.limits, origins)


def check_exposure(host: str, has_keys: bool, allow_open: bool) -> None:
    """Raise ConfigError if other machines can reach ``host`` without a key, unless ``allow_open``."""
    if not (has_keys or allow_open or is_loopback(host)):
        raise ConfigError(
            f"{host!r} can be reached from other machines and there is no API key: "
            "give --api-key, or --allow-open if that is meant"
        )


def given_keys(options: ServeOptions) -> list[str]:
    """Return the keys of options and environment."""
    return [*options.api_keys, *_split(os.environ.get(API_KEYS_VARIABLE, ""))]


def fleet_of(
    settings: Settings, upstreams: Iterable[UpstreamSettings], runtime: RuntimeConfig
) -> FleetSettings:
    """Return the settings for ``upstreams``. Without keys of ours, ``Authorization`` is forwarded."""
    return FleetSettings(
        upstreams=tuple(upstreams),
        routing=settings.routing,
        timeouts=settings.timeouts,
        retries=settings.retries,
        health=settings.health,
        forwards_authorization=not runtime.keys,
    )


def sharing_of(settings: SharingSettings) -> Sharing | None:
    """Return the sharing with other gateways; None if there is none. Raises ConfigError."""
    if settings.store is None:
        return None
    with needed("corpus"):
        from agentspec.gateway.sharing.service import Sharing
    return Sharing(settings)


def discovery_of(settings: Settings) -> Discovery | None:
    """Return the discovery of stages; None if it is off.

    Its stages are kept in the file of its settings, or else in the store that gateways share.

    Raises:
        ConfigError: the file can't be used, or a package is missing.
    """
    if settings.discovery is None:
        return None
    if settings.sharing.store is None or settings.discovery.path is not None:
        return Discovery(settings.discovery)
    with needed("corpus"):
        from agentspec.gateway.discovery.redis_store import RedisDiscoveryStore
    store = RedisDiscoveryStore(settings.sharing.store, keeps_text=settings.discovery.keeps_text)
    return Discovery(settings.discovery, store)


def tracing_of(settings: TracingSettings) -> Tracing | None:
    """Return the tracing that makes spans; None if it is off. Raises ConfigError if a package is missing."""
    if not _traces(settings):
        return None
    with needed("otel"):
        from agentspec.gateway.telemetry.tracing import exporting
    return exporting(settings.endpoint)


def check_tracing(settings: TracingSettings) -> None:
    """Raise the ConfigError of :func:`tracing_of` without starting anything."""
    if _traces(settings):
        with needed("otel"):
            import agentspec.gateway.telemetry.tracing  # noqa: F401


def _traces(settings: TracingSettings) -> bool:
    return settings.endpoint is not None or any(os.environ.get(name) for name in COLLECTOR_VARIABLES)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a server that listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _running_engine(url: str, options: ServeOptions) -> UpstreamSettings:
    return UpstreamSettings.at(
        url,
        api_key=os.environ.get(ENGINE_API_KEY_VARIABLE),
        sends_xargs=options.sends_xargs,
        control_token=options.control_token or os.environ.get(TOKEN_VARIABLE),
    )


def hidden(value: Any) -> Any:
    """Return a value, or all values of a group, as plain values for YAML. Secrets are hidden."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {name: shown_as(name, getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {name: hidden(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [hidden(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return str(value) if isinstance(value, str | Path) else value


def shown_as(name: str, value: Any) -> Any:
    """Return the value of the setting ``name`` as plain values, with secrets hidden."""
    if name in ("corpus", "store") and isinstance(value, str):
        return without_password(value)
    return HIDDEN if name in SECRETS and value is not None else hidden(value)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
