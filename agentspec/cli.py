"""The ``agentspec`` command and its subcommands.

Each subcommand imports its module when it is chosen: ``agentspec --version`` loads no server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from agentspec import __version__
from agentspec.commands.option_types import unrecognized
from agentspec.errors import AgentSpecError
from agentspec.removed_settings import removed_argument

COMMANDS = {  # name: module in agentspec.commands with its options, help
    "serve": ("serve.command", "start a server"),
    "init": ("init", "write agentspec.yaml by asking a few questions"),
    "run": ("run.command", "run a program through a gateway, with its calls tagged"),
    "compare": ("compare.command", "run a program with and without drafts, and compare times and outputs"),
    "key": ("key", "make an API key"),
    "doctor": ("doctor", "check this installation"),
    "forest": ("forest", "see and change the trees of a running server"),
    "corpus": ("corpus.command", "see, move, check and erase outputs that engines share"),
    "stages": ("stages", "see and change the stages that a running server discovered"),
    "top": ("top", "show the saving of a running server, live"),
    "replay": ("replay", "estimate the saving on recorded calls"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    return run_command(build_parser(), argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse ``argv``, call the chosen command and return the exit status."""
    for argument in (sys.argv[1:] if argv is None else argv)[:1]:
        if sentence := removed_argument(parser.prog, argument):
            parser.error(sentence)
    args, unknown = parser.parse_known_args(argv)
    args.unknown = unknown
    try:
        if unknown and not getattr(args, "passes_on_unknown", False):
            raise unrecognized(args.unknown, args.flags)
        return int(args.run(args))
    except argparse.ArgumentError as error:
        parser.error(str(error))
    except AgentSpecError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="agentspec", description="Per-stage suffix-tree speculative decoding for LLM agents."
    )
    parser.add_argument("--version", action="version", version=f"agentspec {__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=CommandParser
    )
    for name, (module, text) in COMMANDS.items():
        commands.add_parser(name, help=text, module=module)
    return parser


class CommandParser(argparse.ArgumentParser):
    """The parser of one subcommand. It adds its options when the subcommand is chosen."""

    def __init__(self, *, module: str | None = None, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._module = module

    def add_options(self) -> None:
        """Import the subcommand's module and add its options, on the first call."""
        if self._module is not None:
            module, self._module = self._module, None
            import_module(f"agentspec.commands.{module}").add_options(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options, then parse. ``flags`` holds the option strings of this parser.

        Removed subcommands and removed flags end with what to use instead, before ``serve`` passes them on.
        """
        self.add_options()
        if args:
            self._refuse_removed(args[:1])
        parsed, unknown = super().parse_known_args(args, namespace)
        self._refuse_removed(unknown)
        parsed.flags = [*self._option_string_actions, *getattr(parsed, "flags", ())]
        return parsed, unknown

    def _refuse_removed(self, arguments: Sequence[str]) -> None:
        for argument in arguments:
            if sentence := removed_argument(self.prog, argument):
                self.error(sentence)
