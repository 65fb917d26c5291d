"""The checked plan for a start of ``agentspec serve``. ``--dry-run`` shows it and ends.

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

from agentspec.commands.serve.engine_choice import EngineChoice, choose_engine
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import HIDDEN, check_exposure, check_tracing, hidden
from agentspec.commands.serve.torch_engine import EmbeddedPlan
from agentspec.commands.settings_file import yaml_text
from agentspec.errors import ConfigError
from agentspec.gateway import RuntimeConfig
from agentspec.gateway.discovery.sqlite_store import SqliteDiscoveryStore
from agentspec.gateway.server import bind
from agentspec.gateway.settings import Settings


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
    if choice.is_embedded:
        embedded = EmbeddedPlan.of(options, settings.engine, is_replaying=choice.engine == "replay")
        return embedded, embedded.shown()
    if choice.engine == "vllm":
        from agentspec.commands.serve import vllm_engine

        vllm_engine.check(options, settings)
        return None, vllm_engine.shown(settings.engine)
    return None, {}


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
