"""Reload of the settings of a running ``agentspec serve``. Some apply immediately, others need a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import (
    check_exposure,
    fleet_of,
    read_settings,
    runtime_config_of,
    shown_as,
)
from agentspec.errors import ConfigError
from agentspec.gateway import Fleet, RuntimeConfig, Upstream
from agentspec.gateway.config_file import readable_keys
from agentspec.gateway.settings import KeySettings, Settings

RUNTIME_SETTINGS = ("keys", "admin_key_sha256", "limits", "server.allow_open", "server.cors_origins")
FLEET_SETTINGS = ("routing", "timeouts", "retries", "health")
READ_AT_START = ("limits.unread_s",)  # an option of the listening socket
MOST_CHARS = 200  # of a value in the log

logger = logging.getLogger("agentspec")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs, with both values as the log shows them."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class LivePart:
    """Settings that apply from the next request on, and the function that applies them."""

    names: tuple[str, ...]
    put: Callable[[Settings, RuntimeConfig], None]


class RunningSettings:
    """The settings of a running gateway.

    Args:
        options: command line options as given.
        settings: settings at the start.
        upstream, runtime: objects that receive the changes.
    """

    def __init__(
        self, options: ServeOptions, settings: Settings, upstream: Upstream, runtime: RuntimeConfig
    ) -> None:
        self._options = options
        self._started = self._now = settings
        self._runtime = runtime
        self._live = (
            LivePart(RUNTIME_SETTINGS, self._put_runtime),
            LivePart(("server.log_level",), _put_log_level),
            self._engines(upstream),
        )

    def read(self, raw: bytes) -> Callable[[], None]:
        """Read all settings again, from ``raw``, the file's content. Safe in any thread.

        Returns:
            What applies the live settings and logs the changes; for the event loop. Raises ConfigError or
            StageError if they would open the gateway. Nothing has changed then.

        Raises:
            ConfigError: the settings are wrong.
        """
        settings = read_settings(self._options, raw)
        return lambda: self._apply(settings)

    def salvage(self, raw: bytes) -> Callable[[], None]:
        """Read from a file with mistakes which API keys it still lists. Safe in any thread.

        Returns:
            What revokes the others; for the event loop. Nothing else changes, and no key is added.
        """
        assert self._options.config is not None
        listed = readable_keys(raw, self._options.config)
        return lambda: None if listed is None else self._revoke(listed)

    def _revoke(self, listed: Sequence[KeySettings]) -> None:
        known = {(key.sha256.lower(), key.tenant) for key in listed}
        kept = tuple(key for key in self._now.keys if (key.sha256.lower(), key.tenant) in known)
        num_gone = len(self._now.keys) - len(kept)
        settings = self._now.model_copy(update={"keys": kept})
        runtime = runtime_config_of(settings, self._options, self._runtime)
        if not num_gone or not runtime.keys:  # without keys the gateway would be open
            return
        self._runtime.keys = runtime.keys
        self._now = settings
        logger.warning("revoked %d API keys, which the file with mistakes no longer lists", num_gone)

    def _apply(self, settings: Settings) -> None:
        runtime = runtime_config_of(settings, self._options, self._runtime)
        self._check(settings, runtime)
        num_keys = len(self._runtime.keys)
        for part in self._live:
            part.put(settings, runtime)
        self._log(settings, num_keys)
        self._now = settings

    def _check(self, settings: Settings, runtime: RuntimeConfig) -> None:
        """Refuse unsafe changes of a running gateway: the file may be half written, or the wrong one."""
        server = settings.server
        for host in (self._started.server.host, server.host):  # the first is the address that it listens on
            check_exposure(host, bool(runtime.keys), server.allow_open)
        if self._started.upstreams and not settings.upstreams:
            raise ConfigError(
                "no upstream is left, and an engine of its own is only started with the gateway"
            )
        if server.allow_open:
            return
        if self._runtime.keys and not runtime.keys:
            raise ConfigError("no API key is left: to open the gateway, restart it or set server.allow_open")
        if self._runtime.admin_key is not None and runtime.admin_key is None:
            raise ConfigError(
                "the operator's key is missing: to do without, restart the gateway or set server.allow_open"
            )

    def _engines(self, upstream: Upstream) -> LivePart:
        if not isinstance(upstream, Fleet):
            return LivePart(
                FLEET_SETTINGS, lambda settings, runtime: None
            )  # no engine behind HTTP to use them
        names = (*FLEET_SETTINGS, "upstreams") if self._started.upstreams else FLEET_SETTINGS

        def put(settings: Settings, runtime: RuntimeConfig) -> None:
            engines = settings.upstreams if "upstreams" in names else upstream.upstreams
            upstream.apply(fleet_of(settings, engines, runtime))

        return LivePart(names, put)

    def _put_runtime(self, _: Settings, new: RuntimeConfig) -> None:
        runtime = self._runtime
        runtime.keys, runtime.admin_key, runtime.limits = new.keys, new.admin_key, new.limits
        runtime.cors_origins = new.cors_origins

    def _log(self, settings: Settings, num_keys: int) -> None:
        for change in differences(self._now, settings):
            if change.name == "keys":
                logger.warning("the API keys changed: %d before, %d now", num_keys, len(self._runtime.keys))
            elif change.name == "admin_key_sha256":
                logger.warning("the operator's key changed: %s", change)
            else:
                logger.info("changed: %s", change)
        waiting = [
            change for change in differences(self._started, settings) if not self._is_live(change.name)
        ]
        if waiting:
            logger.warning("this needs a restart: %s", "; ".join(map(str, waiting)))

    def _is_live(self, name: str) -> bool:
        live = [live for part in self._live for live in part.names]
        return name not in READ_AT_START and any(f"{name}.".startswith(f"{one}.") for one in live)


def differences(before: BaseModel, after: BaseModel, group: str = "") -> Iterator[Change]:
    """Yield every setting that differs between two configurations. Secrets are hidden."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from differences(old, new, f"{group}{name}.")
        elif old != new:
            yield Change(group + name, _shown(name, old), _shown(name, new))


def _put_log_level(settings: Settings, _: RuntimeConfig) -> None:
    logging.getLogger().setLevel(settings.server.log_level.upper())


def _shown(name: str, value: Any) -> str:
    if name == "arguments":  # vLLM's own, which may hold a key
        return f"({len(value)} arguments)"
    text = repr(shown_as(name, value))
    return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + "..."
