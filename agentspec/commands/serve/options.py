"""The flags of ``agentspec serve``, made from the settings, and the command line that they parse."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentspec.commands import option_types
from agentspec.commands.option_types import flag_of
from agentspec.serve_settings import (
    DraftingSettings,
    EmbeddedSettings,
    EngineSettings,
    Group,
    ModelSettings,
    ServerSettings,
    VllmSettings,
    mistake,
    presentation,
)

ADMIN_KEY_VARIABLE = "AGENTSPEC_ADMIN_KEY"
API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
METAVARS = {int: "N", float: "X"}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command line of ``agentspec serve``, before file and environment are read.

    Attributes:
        given: given settings: values by group and name.
        api_keys: as ``KEY`` or ``KEY=TENANT``.
        unknown: arguments that are no flags of ours. They may be vLLM's.
        flags: all flags of ours, to suggest one for an unknown argument.
    """

    config: Path | None = None
    is_dry_run: bool = False
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    api_keys: tuple[str, ...] = ()
    admin_key: str | None = None
    engine_url: str | None = None
    control_token: str | None = None
    sends_xargs: bool = True
    unknown: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @classmethod
    def of(cls, args: argparse.Namespace) -> ServeOptions:
        """Return the parsed command line."""
        given: dict[str, dict[str, Any]] = {}
        for dest, value in vars(args).items():
            group, dot, name = dest.partition(".")
            if dot:
                given.setdefault(group, {})[name] = value
        if args.engine_timeout_s is not None:
            given["timeouts"] = dict.fromkeys(("first_byte_s", "idle_s"), args.engine_timeout_s)
        return cls(
            config=args.config,
            is_dry_run=args.dry_run,
            given=given,
            api_keys=tuple(args.api_key),
            admin_key=args.admin_key,
            engine_url=args.engine_url,
            control_token=args.control_token,
            sends_xargs=args.xargs,
            unknown=tuple(args.unknown),
            flags=tuple(args.flags),
        )

    def name_of(self, setting: str, engine: EngineSettings) -> str:
        """Return the name under which a setting of the engine was given: the flag, or the file's name."""
        is_in_file = setting in engine.model_fields_set and setting not in self.given.get("engine", ())
        return f"the setting engine.{setting}" if is_in_file else flag_of(setting)


class HelpAll(argparse.Action):
    """``--help-all``: the help with the flags that ``--help`` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)
        self._texts: dict[argparse.Action, str | None] = {}

    def leave_out(self, action: argparse.Action) -> None:
        """Leave a flag out of ``--help``."""
        self._texts[action] = action.help
        action.help = argparse.SUPPRESS

    def show_all(self) -> None:
        """Show every flag in the parser's help from now on."""
        for action, text in self._texts.items():
            action.help = text

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the whole help, and exit."""
        self.show_all()
        parser.print_help()
        parser.exit()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag: those of the settings, and those that stand for no single setting."""
    help_all: Any = parser.add_argument("--help-all", action=HelpAll, help="show all flags, and exit")
    server = parser.add_argument_group("server")
    server.add_argument("--config", type=Path, metavar="FILE", help="agentspec.yaml; flags override it")
    server.add_argument("--dry-run", action="store_true", help="check all settings, show them, and end")
    server.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY[=TENANT]",
        help=f"let in only requests with this key; repeatable; also ${API_KEYS_VARIABLE}, comma-separated",
    )
    rare = [
        server.add_argument(
            "--admin-key",
            default=os.environ.get(ADMIN_KEY_VARIABLE) or None,
            metavar="KEY",
            help=f"the operator's key, for metrics, saving and loading; also ${ADMIN_KEY_VARIABLE}",
        )
    ]
    rare += _add_settings(server, "server", ServerSettings)
    for title, model in (
        ("engine: vLLM or the embedded one", ModelSettings),
        ("drafts and shared outputs, in both", DraftingSettings),
        ("embedded engine only (PyTorch)", EmbeddedSettings),
        ("vLLM only, with all options of vLLM's own", VllmSettings),
    ):
        rare += _add_settings(parser.add_argument_group(title), "engine", model)
    rare += _add_running(parser.add_argument_group("an engine that runs already"))
    for action in rare:
        help_all.leave_out(action)


def _add_running(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """Add the flags for an engine elsewhere, and return those that ``--help`` leaves out."""
    group.add_argument("--engine-url", metavar="URL", help="forward to this OpenAI-compatible server")
    return [
        group.add_argument(
            "--control-token",
            metavar="TOKEN",
            help="of its plug-in's control channel; also $AGENTSPEC_CONTROL_TOKEN",
        ),
        group.add_argument(
            "--xargs",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="send the stage to the engine in the body's vllm_xargs; some servers refuse unknown fields",
        ),
        group.add_argument(
            "--engine-timeout-s",
            type=option_types.seconds,
            metavar="S",
            help="longest silence (default: 600)",
        ),
    ]


def _add_settings(group: argparse._ArgumentGroup, name: str, model: type[Group]) -> list[argparse.Action]:
    """Add a flag for each setting that is no list, and return those that ``--help`` leaves out."""
    rare = []
    for setting, info in model.model_fields.items():
        if get_origin(info.annotation) is not tuple:
            action = _add_setting(group, f"{name}.{setting}", setting, info, model)
            rare += [] if presentation(info)["common"] else [action]
    return rare


def _add_setting(
    group: argparse._ArgumentGroup, dest: str, setting: str, info: FieldInfo, model: type[Group]
) -> argparse.Action:
    text = (info.description or "").replace("%", "%%")
    if info.default not in (None, False) and not isinstance(info.default, dict):
        text += (
            f" (default: {info.default:g})"
            if isinstance(info.default, float)
            else f" (default: {info.default})"
        )
    options: dict[str, Any] = {"dest": dest, "default": argparse.SUPPRESS, "help": text}
    if info.annotation is bool:
        return group.add_argument(flag_of(setting), action="store_true", **options)
    if get_origin(info.annotation) is Literal:
        return group.add_argument(flag_of(setting), choices=get_args(info.annotation), **options)
    kinds = get_args(info.annotation) or (info.annotation,)
    metavar = presentation(info)["metavar"] or METAVARS.get(kinds[0], setting.upper())
    return group.add_argument(flag_of(setting), type=_reader(setting, model), metavar=metavar, **options)


def _reader(setting: str, model: type[Group]) -> Callable[[str], Any]:
    """Return the function that parses the flag of a setting, as the file's value of that setting."""

    def read(text: str) -> Any:
        try:
            return getattr(model(**{setting: text}), setting)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(mistake(error.errors(include_url=False)[0])) from None

    return read
