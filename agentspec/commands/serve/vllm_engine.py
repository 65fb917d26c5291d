"""vLLM with the plugin, as ``agentspec serve`` starts it: for its own gateway, for others, or without one."""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import (
    ENGINE_API_KEY_VARIABLE,
    HIDDEN,
    fleet_of,
    given_keys,
    is_loopback,
)
from agentspec.errors import ConfigError
from agentspec.forest.file import check_place
from agentspec.gateway import (
    EngineCommand,
    EngineSupervisor,
    EngineTimeouts,
    Fleet,
    RuntimeConfig,
    UpstreamSettings,
)
from agentspec.gateway.auth.api_keys import API_KEYS_VARIABLE
from agentspec.gateway.server import bind
from agentspec.gateway.settings import DISCOVERY_FILE_VARIABLE, Settings
from agentspec.gateway.upstreams.routing import SIZE_VARIABLE
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from agentspec.serve_settings import DraftingSettings, EngineSettings
from agentspec.vllm_plugin.control import TOKEN_VARIABLE
from agentspec.vllm_plugin.launch import (
    DEFAULT_MAX_DRAFT,
    chosen_runner,
    num_ranks,
    vllm_command,
    vllm_environment,
)

logger = logging.getLogger("agentspec")

LOOPBACK = "127.0.0.1"
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
API_KEY_VARIABLE = "VLLM_API_KEY"
PATH_STARTS = ("/", "./", "../", "~")
SECRET_FLAG = re.compile(r"(^-*|[-_.])(key|token|password|secret)$")
# vLLM kills its engine immediately unless it is given time, in which the forest is saved
SHUTDOWN_S = 20
PASSED_ON = ("served_model_name", "max_model_len", "dtype")


def check(options: ServeOptions, settings: Settings) -> None:
    """Raise ConfigError if vLLM can't be started, as far as that is known without starting it."""
    engine = settings.engine
    if engine.max_draft == 0:
        raise ConfigError(f"{options.name_of('max_draft', engine)} must be at least 1 with vLLM, not 0")
    for name in ("model", "draft_model"):
        path: str | None = getattr(engine, name)
        if path and path.startswith(PATH_STARTS) and not Path(path).exists():
            raise ConfigError(f"{options.name_of(name, engine)} {path!r} is not there")
    if engine.zero_hop and engine.engine_only:
        raise ConfigError(
            "--zero-hop is for clients, --engine-only for gateways elsewhere: give one of the two"
        )
    if engine.zero_hop:
        _check_no_gateway("--zero-hop", settings)
        _written_keys(options, settings)
    elif engine.engine_only:
        _check_no_gateway("--engine-only", settings)
        _check_engine_only(options, settings)
    else:
        _free_port(engine.engine_port or 0)
    if engine.forest_file is not None:
        check_place(engine.forest_file)
    _argv(engine, LOOPBACK, 0, shutdown_s=SHUTDOWN_S, zero_hop=bool(engine.zero_hop))


def _check_no_gateway(flag: str, settings: Settings) -> None:
    if settings.server.record:
        raise ConfigError(f"with {flag} there is no gateway to record: --record {settings.server.record!r}")
    if settings.server.cors_origins:
        raise ConfigError(
            f"with {flag} vLLM answers web pages itself: leave server.cors_origins out, and give "
            "vLLM's --allowed-origins"
        )
    if settings.sharing.store is not None:
        raise ConfigError(f"with {flag} there is no gateway that shares: leave sharing out")


def _check_engine_only(options: ServeOptions, settings: Settings) -> None:
    if given_keys(options) or settings.keys:
        raise ConfigError(
            f"tenants' keys are for the gateways: leave --api-key, ${API_KEYS_VARIABLE} and keys out with "
            f"--engine-only; the engine's own key is ${ENGINE_API_KEY_VARIABLE}"
        )
    server = settings.server
    if not (_engine_key() or server.allow_open or is_loopback(server.host)):
        raise ConfigError(
            f"{server.host!r} can be reached from other machines and the engine has no key: set "
            f"${ENGINE_API_KEY_VARIABLE} here and in the gateways, or give --allow-open if that is meant"
        )


def in_force(engine: EngineSettings) -> dict[str, Any]:
    """Return defaults that depend on other settings, and vLLM's own arguments without possible secrets."""
    return {
        "model": engine.model or str(bundled_model_dir()),
        "served_model_name": _name(engine),
        "max_draft": _max_draft(engine),
        "arguments": list(_without_secrets(engine.arguments)),
    }


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    is_secret = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if flag.startswith("-"):
            is_secret = SECRET_FLAG.search(flag) is not None
            yield f"{flag}={HIDDEN}" if is_secret and equals else argument
        else:
            yield HIDDEN if is_secret else argument


def behind_gateway(
    options: ServeOptions, settings: Settings, runtime: RuntimeConfig
) -> tuple[Fleet, str, EngineSupervisor]:
    """Return vLLM on a loopback port, protected by this process's secrets, and the name that it serves."""
    started = settings.engine
    _log_runner(started)
    port = _free_port(started.engine_port or 0)
    root = f"http://{LOOPBACK}:{port}"
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe()
    key = secrets.token_urlsafe()
    argv = _argv(started, LOOPBACK, port, shutdown_s=SHUTDOWN_S)
    command = EngineCommand(
        argv,
        {**vllm_environment(token, _plugin_settings(started), argv), API_KEY_VARIABLE: key},
        stop_timeout_s=SHUTDOWN_S + 10,
    )
    engine = UpstreamSettings(
        url=root,
        api_key=key,
        sends_xargs=options.sends_xargs,
        control_token=token,
        data_parallel_size=num_ranks(started.arguments),
    )
    fleet = Fleet(fleet_of(settings, [engine], runtime))
    return fleet, _name(started), EngineSupervisor(command, root, timeouts=_timeouts(started))


def zero_hop(options: ServeOptions, settings: Settings, port: int) -> tuple[EngineSupervisor, str]:
    """Return vLLM's own server with the stage middleware, on our host and port."""
    server, engine, keys = settings.server, settings.engine, _written_keys(options, settings)
    _log_runner(engine)
    shutdown_s = math.ceil(server.grace_s)
    argv = _argv(engine, server.host, port, shutdown_s=shutdown_s, zero_hop=True)
    command = EngineCommand(
        argv,
        {
            API_KEYS_VARIABLE: ",".join(keys),
            **vllm_environment(_operators_token(options, keys), _plugin_settings(engine), argv),
            **_discovery_file(settings),
            **_data_parallel_size(engine),
        },
        stop_timeout_s=shutdown_s + 10,
    )
    return EngineSupervisor(command, _root(server.host, port), timeouts=_timeouts(engine)), _name(engine)


def engine_only(settings: Settings, port: int) -> tuple[EngineSupervisor, str]:
    """Return vLLM's own server on our host and port, for gateways elsewhere.

    The keys of gateway and engine have the same names on both sides: ``$AGENTSPEC_ENGINE_API_KEY`` and
    ``$AGENTSPEC_CONTROL_TOKEN``.
    """
    server, engine = settings.server, settings.engine
    _log_runner(engine)
    shutdown_s = math.ceil(server.grace_s)
    argv = _argv(engine, server.host, port, shutdown_s=shutdown_s)
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe()
    environment = vllm_environment(token, _plugin_settings(engine), argv)
    if key := _engine_key():
        environment[API_KEY_VARIABLE] = key
    command = EngineCommand(argv, environment, stop_timeout_s=shutdown_s + 10)
    return EngineSupervisor(command, _root(server.host, port), timeouts=_timeouts(engine)), _name(engine)


def _engine_key() -> str | None:
    return os.environ.get(ENGINE_API_KEY_VARIABLE) or os.environ.get(API_KEY_VARIABLE) or None


def _root(host: str, port: int) -> str:
    """Return the URL at which this process reaches a server that listens on ``host``."""
    return f"http://{EVERYWHERE.get(host, f'[{host}]' if ':' in host else host)}:{port}"


def _written_keys(options: ServeOptions, settings: Settings) -> list[str]:
    """Return all keys in the form of $AGENTSPEC_API_KEYS. Raises ConfigError if one has limits."""
    for key in settings.keys:
        if key.requests_per_minute or key.max_concurrent:
            raise ConfigError(
                "keys have no limits with --zero-hop: requests sent directly to vLLM are not counted"
            )
    return [*given_keys(options), *(f"sha256:{key.sha256.lower()}={key.tenant}" for key in settings.keys)]


def _discovery_file(settings: Settings) -> dict[str, str]:
    path = settings.discovery and settings.discovery.path
    return {DISCOVERY_FILE_VARIABLE: str(path)} if path else {}


def _data_parallel_size(engine: EngineSettings) -> dict[str, str]:
    size = num_ranks(engine.arguments)
    return {SIZE_VARIABLE: str(size)} if size > 1 else {}


def _operators_token(options: ServeOptions, api_keys: Sequence[str]) -> str | None:
    """Return the control channel's token: the operator's key, or a random one if there are API keys."""
    return options.admin_key or (secrets.token_urlsafe() if api_keys else None)


def _argv(
    engine: EngineSettings, host: str, port: int, *, shutdown_s: int, zero_hop: bool = False
) -> list[str]:
    passed_on = {name: getattr(engine, name) for name in PASSED_ON}
    if not engine.model:
        passed_on["served_model_name"] = _name(engine)
    return vllm_command(
        engine.model or str(bundled_model_dir()),
        [
            *("--disable-uvicorn-access-log", "--shutdown-timeout", str(shutdown_s)),
            *(part for name, value in _given(passed_on) for part in (_flag(name), str(value))),
            *engine.arguments,
        ],
        settings=_plugin_settings(engine),
        num_speculative_tokens=_max_draft(engine),
        draft_model=engine.draft_model,
        host=host,
        port=port,
        zero_hop=zero_hop,
    )


def _plugin_settings(engine: EngineSettings) -> dict[str, Any]:
    """Return the plug-in's JSON: the settings that were given. The plug-in has the same defaults."""
    return engine.model_dump(include={*DraftingSettings.model_fields}, exclude_unset=True)


def _log_runner(engine: EngineSettings) -> None:
    runner = chosen_runner(engine.arguments)
    if runner.reason is not None:
        logger.warning(
            "vLLM runs its model runner %s, without asynchronous scheduling: %s", runner.name, runner.reason
        )


def _given(options: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in options.items() if value is not None]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _name(engine: EngineSettings) -> str:
    return engine.served_model_name or engine.model or BUNDLED_MODEL


def _max_draft(engine: EngineSettings) -> int:
    return DEFAULT_MAX_DRAFT if engine.max_draft is None else engine.max_draft


def _timeouts(engine: EngineSettings) -> EngineTimeouts:
    return EngineTimeouts(start_timeout_s=engine.engine_start_timeout_s)


def _free_port(wanted: int) -> int:
    """Return ``wanted`` or, for 0, any free port. Raises ConfigError if another server has it."""
    try:
        with bind(LOOPBACK, wanted) as bound:
            port: int = bound.getsockname()[1]
    except OSError as error:
        raise ConfigError(f"--engine-port {wanted} can't be vLLM's: {error.strerror}") from None
    return port
