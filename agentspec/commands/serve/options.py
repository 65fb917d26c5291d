"""The command line of ``agentspec serve`` as typed values. ``command`` declares the options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.commands.option_types import flag_of
from agentspec.gateway.settings import EngineSettings

SERVER_OPTIONS = ("host", "port", "allow_open", "grace_s", "log_level", "record")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options as given, before file and environment are read.

    Attributes:
        server: given settings of the server, by name.
        engine: given settings of the engine to be started.
        api_keys: as ``KEY`` or ``KEY=TENANT``.
        engine_timeout_s: longest silence of an engine, in seconds.
        unknown: arguments that are no options of ours. They may be vLLM's.
        flags: all options of ours, to suggest one for an unknown argument.
    """

    config: Path | None
    is_dry_run: bool
    server: Mapping[str, Any]
    engine: EngineSettings
    api_keys: tuple[str, ...]
    admin_key: str | None
    engine_url: str | None
    control_token: str | None
    sends_xargs: bool
    engine_timeout_s: float | None
    unknown: tuple[str, ...]
    flags: tuple[str, ...]

    @classmethod
    def of(cls, args: argparse.Namespace) -> ServeOptions:
        """Return the parsed command line."""
        engine = {name: getattr(args, name) for name in EngineSettings.model_fields if name != "arguments"}
        server = {name: getattr(args, name) for name in SERVER_OPTIONS}
        return cls(
            config=args.config,
            is_dry_run=args.dry_run,
            server={name: value for name, value in server.items() if is_given(value)},
            engine=EngineSettings(**{name: value for name, value in engine.items() if is_given(value)}),
            api_keys=tuple(args.api_key),
            admin_key=args.admin_key,
            engine_url=args.engine_url,
            control_token=args.control_token,
            sends_xargs=args.xargs,
            engine_timeout_s=args.engine_timeout_s,
            unknown=tuple(args.unknown),
            flags=tuple(args.flags),
        )

    def name_of(self, setting: str) -> str:
        """Return the name under which a setting of the engine was given: the option's, or the file's."""
        is_in_file = setting in EngineSettings.model_fields and setting not in self.engine.model_fields_set
        return f"the setting engine.{setting}" if is_in_file else flag_of(setting)


def is_given(value: object) -> bool:
    """Return True for the value of an option that is on the command line. 0 is a value too."""
    return value is not None and value is not False
