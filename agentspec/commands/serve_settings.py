"""The settings of ``agentspec serve``: options override the environment, and both override the file."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from agentspec.errors import ConfigError
from agentspec.extras import needed
from agentspec.gateway.auth.api_keys import API_KEYS_VARIABLE, ApiKey, ApiKeys, digest_of, parse_keys
from agentspec.gateway.auth.runtime_config import RuntimeConfig
from agentspec.gateway.config_file import SECRETS, load_settings
from agentspec.gateway.settings import (
    EngineSettings,
    FleetSettings,
    Settings,
    TracingSettings,
    UpstreamSettings,
)
from agentspec.vllm_plugin.control import TOKEN_VARIABLE

if TYPE_CHECKING:
    from agentspec.gateway.telemetry.tracing import Tracing

logger = logging.getLogger("agentspec")

ENGINE_API_KEY_VARIABLE = "AGENTSPEC_ENGINE_API_KEY"
COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
HIDDEN = "(hidden)"
SERVER_OPTIONS = ("host", "port", "allow_open", "grace_s", "log_level", "record")


def read_settings(args: argparse.Namespace) -> Settings:
    """Read all settings. Those of the engine to be started are put into ``args`` too.

    Raises:
        ConfigError: a setting is wrong, or there are both running engines and one to be started.
    """
    settings = load_settings(args.config)
    server = {name: getattr(args, name) for name in SERVER_OPTIONS if is_given(args, name)}
    changes: dict[str, Any] = {"server": settings.server.model_copy(update=server)}
    if args.engine_timeout_s is not None:
        silence = {"first_byte_s": args.engine_timeout_s, "idle_s": args.engine_timeout_s}
        changes["timeouts"] = settings.timeouts.model_copy(update=silence)
    if args.engine_url:
        changes["upstreams"] = (_engine_of(args),)
    settings = settings.model_copy(update=changes)
    _fill_in(args, settings.engine)
    if settings.upstreams and settings.engine != EngineSettings():
        raise ConfigError(
            "the configuration names engines that run (upstreams) and one to be started (engine)"
        )
    return settings


def runtime_config_of(
    settings: Settings, args: argparse.Namespace, before: RuntimeConfig | None = None
) -> RuntimeConfig:
    """Return keys and limits. Raises ConfigError, StageError."""
    keys = [
        ApiKey(bytes.fromhex(key.sha256), key.tenant, key.requests_per_minute, key.max_concurrent)
        for key in settings.keys
    ]
    known = {key.digest for key in keys}
    keys += [key for key in parse_keys(given_keys(args)) if key.digest not in known]
    if args.admin_key == "":
        raise ConfigError("--admin-key is empty: give it a key, or leave it out")
    admin = digest_of(args.admin_key) if args.admin_key else None
    if admin is None and settings.admin_key_sha256:
        admin = bytes.fromhex(settings.admin_key_sha256)
    origins = frozenset(settings.server.cors_origins)
    if "*" in origins and not keys:
        logger.warning(
            "every web page can use this gateway: server.cors_origins has '*', and there are no keys"
        )
    return RuntimeConfig(
        ApiKeys(keys, None if before is None else before.keys), admin, settings.limits, origins
    )


def check_exposure(host: str, has_keys: bool, allow_open: bool) -> None:
    """Raise ConfigError if other machines can reach ``host`` without a key, unless ``allow_open``."""
    if not (has_keys or allow_open or _is_loopback(host)):
        raise ConfigError(
            f"{host!r} can be reached from other machines and there is no API key: "
            "give --api-key, or --allow-open if that is meant"
        )


def given_keys(args: argparse.Namespace) -> list[str]:
    """Return the keys of options and environment."""
    return [*args.api_key, *_split(os.environ.get(API_KEYS_VARIABLE, ""))]


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _engine_of(args: argparse.Namespace) -> UpstreamSettings:
    return UpstreamSettings(
        url=args.engine_url,
        api_key=os.environ.get(ENGINE_API_KEY_VARIABLE),
        sends_xargs=args.xargs,
        control_token=args.control_token or os.environ.get(TOKEN_VARIABLE),
    )


def is_given(args: argparse.Namespace, option: str) -> bool:
    """Return True if the option is on the command line. 0 is a value too."""
    value = getattr(args, option)
    return value is not None and value is not False


def _fill_in(args: argparse.Namespace, engine: EngineSettings) -> None:
    """Fill in the configuration's engine settings, unless an option overrides them."""
    for name in EngineSettings.model_fields.keys() - {"arguments"}:
        if not is_given(args, name):
            setattr(args, name, getattr(engine, name))
    args.unknown = [*engine.arguments, *args.unknown]


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
    return HIDDEN if name in SECRETS and value is not None else hidden(value)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
