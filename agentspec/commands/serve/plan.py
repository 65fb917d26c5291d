"""The checked plan of a start of ``agentspec serve``: its engine and settings. ``--dry-run`` shows it.

torch is not imported, no model is loaded, and no file is left behind.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.commands.option_types import unrecognized
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import HIDDEN, check_exposure, check_tracing, hidden, shown_as
from agentspec.commands.serve.torch_engine import EmbeddedPlan
from agentspec.commands.settings_file import yaml_text
from agentspec.errors import ConfigError
from agentspec.gateway import RuntimeConfig
from agentspec.gateway.discovery.sqlite_store import SqliteDiscoveryStore
from agentspec.gateway.server import bind
from agentspec.gateway.settings import Settings
from agentspec.serve_settings import (
    DraftingSettings,
    EmbeddedSettings,
    EngineSettings,
    Group,
    ModelSettings,
    VllmSettings,
)
from agentspec.vllm_plugin.checks import installed_version

ENGINES = {
    "running": "a running one",
    "torch": "the embedded one",
    "replay": "the embedded one with recorded calls",
    "vllm": "vLLM",
}


def _names(*groups: type[Group]) -> frozenset[str]:
    return frozenset(name for group in groups for name in group.model_fields)


_STARTED = _names(ModelSettings, DraftingSettings)
SUPPORTED = {  # settings of each engine
    "running": frozenset[str](),
    "torch": _STARTED | _names(EmbeddedSettings) - {"trace"},
    "replay": _STARTED | _names(EmbeddedSettings),
    "vllm": _STARTED | _names(VllmSettings),
}


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """One of ``ENGINES`` and the reason for it, in words."""

    engine: str
    reason: str

    @property
    def is_embedded(self) -> bool:
        """True if the engine runs in this process, with torch."""
        return self.engine in ("torch", "replay")

    def __str__(self) -> str:
        return f"{ENGINES[self.engine]}, because {self.reason}"


def choose_engine(options: ServeOptions, settings: Settings) -> EngineChoice:
    """Return the engine that these options and settings ask for.

    Raises:
        ConfigError, ArgumentError: an option was given that this engine does not support.
    """
    choice = _choice(options, settings)
    if options.unknown and choice.engine != "vllm":
        raise unrecognized(options.unknown, options.flags)
    _check_is_supported(choice, options, settings.engine)
    settings.engine.check_places(lambda name: options.name_of(name, settings.engine))
    return choice


def _check_is_supported(choice: EngineChoice, options: ServeOptions, engine: EngineSettings) -> None:
    """Raise ConfigError if a setting was given that the chosen engine does not have."""
    supported = {"engine", *SUPPORTED[choice.engine]}
    foreign = [
        options.name_of(name, engine)
        for name in EngineSettings.model_fields
        if name in engine.model_fields_set - supported and getattr(engine, name) not in (None, False, ())
    ]
    if options.control_token and choice.engine != "running":
        foreign.append("--control-token")
    if foreign:
        raise ConfigError(
            f"{foreign[0]} is not for {ENGINES[choice.engine]}, which serves because {choice.reason}"
        )


def _choice(options: ServeOptions, settings: Settings) -> EngineChoice:
    engine = settings.engine
    if options.engine_url:
        return EngineChoice("running", "--engine-url was given")
    if settings.upstreams:
        return EngineChoice("running", "the configuration has upstreams")
    if engine.engine != "auto":
        return EngineChoice(engine.engine, f"{options.name_of('engine', engine)} {engine.engine} was given")
    if not engine.model:
        return EngineChoice("torch", "no --model was given")
    if version := installed_version():
        return EngineChoice("vllm", f"--model was given and vLLM {version} is installed")
    return EngineChoice("torch", "vLLM is not installed")


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that has passed every check.

    Attributes:
        embedded: plan of the embedded engine, if it is the chosen one.
        engine: engine's options in force, by name.
    """

    settings: Settings
    runtime: RuntimeConfig
    choice: EngineChoice
    embedded: EmbeddedPlan | None
    engine: dict[str, Any]

    def shown(self) -> str:
        """Return all values in force as YAML. Keys are shown only as their number and tenants."""
        values: dict[str, Any] = hidden(self.settings)
        keys = self.runtime.keys
        values["keys"] = {"number": len(keys), "by_tenant": dict(Counter(sorted(keys.tenants())))}
        values["admin_key_sha256"] = None if self.runtime.admin_key is None else HIDDEN
        values["engine"] = {"engine": self.choice.engine, "reason": self.choice.reason, **self.engine}
        return yaml_text(values, is_flow=False)


def plan_of(options: ServeOptions, settings: Settings, runtime: RuntimeConfig) -> Plan:
    """Check the request in ``options``, ``settings`` and ``runtime``, without starting anything.

    Raises:
        AgentSpecError: it can't start with these settings.
        ArgumentError: an argument is not an option of ours, and is not passed on.
    """
    server = settings.server
    choice = choose_engine(options, settings)
    if not settings.engine.engine_only:  # its key is the engine's own
        check_exposure(server.host, bool(runtime.keys), server.allow_open)
    embedded, engine = _engine(options, settings, choice)
    listening_socket(server.host, server.port).close()
    check_tracing(settings.tracing)
    if server.record is not None:
        _check_record(Path(server.record))
    if settings.discovery is not None and settings.discovery.path is not None:
        _check_discovery(settings.discovery.path)
    return Plan(settings, runtime, choice, embedded, engine)


def _engine(
    options: ServeOptions, settings: Settings, choice: EngineChoice
) -> tuple[EmbeddedPlan | None, dict[str, Any]]:
    """Return the embedded engine's plan, and the settings in force of any engine that is to be started."""
    embedded, in_force = None, {}
    if choice.is_embedded:
        embedded = EmbeddedPlan.of(options, settings.engine, is_replaying=choice.engine == "replay")
        in_force = embedded.in_force()
    elif choice.engine == "vllm":
        from agentspec.commands.serve import vllm_engine

        vllm_engine.check(options, settings)
        in_force = vllm_engine.in_force(settings.engine)
    names = [name for name in EngineSettings.model_fields if name in SUPPORTED[choice.engine] - {"engine"}]
    return embedded, {**{name: shown_as(name, getattr(settings.engine, name)) for name in names}, **in_force}


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises ConfigError with the address if it is taken, or not of this machine."""
    try:
        return bind(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't listen on {in_url(host)}:{port}: {reason}") from None


def in_url(host: str) -> str:
    """Return a host in the form for URLs."""
    return f"[{host}]" if ":" in host else host


def _check_record(path: Path) -> None:
    try:
        with _opened(path):
            pass
    except OSError as error:
        raise ConfigError(f"can't record into {str(path)!r}: {error.strerror}") from None


def _check_discovery(path: Path) -> None:
    if path.exists() and path.stat().st_size > 0:  # opening an empty one makes tables
        with closing(SqliteDiscoveryStore(path)):
            return
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"discovery file {str(path)!r}: there is no such folder")
    try:
        with _opened(path):
            pass
    except OSError as error:
        raise ConfigError(f"discovery file {str(path)!r}: {error.strerror}") from None


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    """Open ``path`` for appending. A file that did not exist is removed afterwards. Raises OSError."""
    path = path.resolve()  # a link may lead to a file that does not exist yet
    flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK  # do not wait for the reader of a pipe
    try:
        descriptor, is_new = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        descriptor, is_new = os.open(path, flags), False
    try:
        yield
    finally:
        os.close(descriptor)
        if is_new:
            with suppress(FileNotFoundError):
                path.unlink()
