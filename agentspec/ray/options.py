"""The arguments of the application: of ``serve run agentspec.ray:app name=value``, or of a Serve file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentspec.commands.serve.options import ADMIN_KEY_VARIABLE, ServeOptions
from agentspec.commands.serve.settings import given_keys, read_settings
from agentspec.errors import ConfigError
from agentspec.gateway.auth.api_keys import digest_of, parse_keys
from agentspec.gateway.settings import KeySettings, Settings
from agentspec.removed_settings import removed_setting
from agentspec.serve_settings import EngineSettings, mistakes

ENGINE_ARGUMENTS = frozenset(EngineSettings.model_fields)


class ClusterOptions(BaseModel):
    """What the application takes of the cluster. Serve's own configuration file overrides each deployment.

    Attributes:
        config: ``agentspec.yaml``, read where the application is built. It need not be on other machines.
        engines: engine replicas at the start, and at least.
        max_engines: more than ``engines`` scales their number by load.
        gateways: gateway replicas.
        cpus, gpus: of each engine replica.
        requests: most requests in flight on an engine replica; Ray sends others elsewhere. None = its slots.
        target_requests: requests in flight per engine that autoscaling aims at, without drafts. None = half
            of ``requests``.
        scale_up_s, scale_down_s: seconds for which a load must last before engines are started or stopped.
        join_s: longest wait of a new replica for the corpus, in seconds.
        drain_s: seconds that requests in flight get when a replica is stopped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Path | None = None
    engines: int = Field(default=1, ge=1)
    max_engines: int | None = Field(default=None, ge=1)
    gateways: int = Field(default=1, ge=1)
    cpus: float = Field(default=1.0, ge=0)
    gpus: float = Field(default=0.0, ge=0)
    requests: int | None = Field(default=None, ge=1)
    target_requests: float | None = Field(default=None, gt=0)
    scale_up_s: float = Field(default=30.0, ge=0)
    scale_down_s: float = Field(default=600.0, ge=0)
    join_s: float = Field(default=60.0, ge=0)
    drain_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> ClusterOptions:
        if self.max_engines is not None and self.max_engines < self.engines:
            raise ValueError(f"max_engines is {self.max_engines}, fewer than engines, {self.engines}")
        return self

    @property
    def is_scaled(self) -> bool:
        """True if the number of engines follows the load."""
        return self.max_engines is not None and self.max_engines > self.engines


def read_arguments(given: Mapping[str, Any]) -> tuple[ClusterOptions, ServeOptions, Settings]:
    """Return what the application's arguments ask for.

    Args:
        given: by name; those that are not :class:`ClusterOptions` are settings of the engine.

    Returns:
        The cluster's options, the engine's, and all settings. Keys are in the settings, as digests only.

    Raises:
        ConfigError: an argument or a setting is wrong, or is not supported on a cluster.
    """
    for name in given:
        if what := removed_setting(f"engine.{name}"):
            raise ConfigError(f"arguments of agentspec.ray:app: {name} {what}")
    of_engine = {name: value for name, value in given.items() if name in ENGINE_ARGUMENTS}
    try:
        cluster = ClusterOptions(**{name: value for name, value in given.items() if name not in of_engine})
        engine = EngineSettings(**of_engine).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ConfigError(f"arguments of agentspec.ray:app: {mistakes(error)}") from None
    options = ServeOptions(config=cluster.config, given={"engine": engine})
    settings = _with_given_keys(read_settings(options), options)
    _check_supported(settings)
    return cluster, options, settings


def _with_given_keys(settings: Settings, options: ServeOptions) -> Settings:
    """Add the keys of this environment, which other machines lack, as digests: Ray stores arguments."""
    known = {key.sha256.lower() for key in settings.keys}
    parsed = {key.digest.hex(): key.tenant for key in parse_keys(given_keys(options))}
    added = [KeySettings(sha256=one, tenant=tenant) for one, tenant in parsed.items() if one not in known]
    changes: dict[str, Any] = {"keys": (*settings.keys, *added)}
    if admin := os.environ.get(ADMIN_KEY_VARIABLE):
        changes["admin_key_sha256"] = digest_of(admin).hex()
    return settings.model_copy(update=changes)


def _check_supported(settings: Settings) -> None:
    engine = settings.engine
    if settings.upstreams:
        raise ConfigError(
            "the configuration has upstreams, engines that run already: on Ray the engines are replicas. "
            "Leave upstreams out, or use `agentspec serve`"
        )
    if engine.zero_hop:
        raise ConfigError("engine.zero_hop has no gateway, and Ray needs one: leave it out")
    if engine.forest_file is not None:
        raise ConfigError(
            f"engine.forest_file {engine.forest_file!r} would be one file of many replicas: "
            "use engine.corpus, which they share"
        )
    if settings.server.record is not None:
        raise ConfigError(
            f"server.record {settings.server.record!r} would be one file of many gateways: record with "
            "`agentspec serve`"
        )
