"""The ``agentspec`` command and its subcommands.

Each subcommand imports its module when it is chosen: ``agentspec --version`` loads no server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from agentspec import __version__
from agentspec.commands.option_types import unrecognized
from agentspec.errors import AgentSpecError
from agentspec.removed_settings import removed_argument

Fill = Callable[[argparse.ArgumentParser], None]


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
    commands.add_parser("serve", help="start a server", fill=_serve)
    commands.add_parser("init", help="write agentspec.yaml by asking a few questions", fill=_init)
    commands.add_parser("run", help="run a program through a gateway, with its calls tagged", fill=_run)
    commands.add_parser(
        "compare", help="run a program with and without drafts, and compare times and outputs", fill=_compare
    )
    commands.add_parser("key", help="make an API key", fill=_key)
    commands.add_parser("doctor", help="check this installation", fill=_doctor)
    commands.add_parser("forest", help="see and change the trees of a running server", fill=_forest)
    commands.add_parser("corpus", help="see, move, check and erase outputs that engines share", fill=_corpus)
    commands.add_parser(
        "stages", help="see and change the stages that a running server discovered", fill=_stages
    )
    commands.add_parser("top", help="show the saving of a running server, live", fill=_top)
    commands.add_parser("replay", help="estimate the saving on recorded calls", fill=_replay)
    return parser


class CommandParser(argparse.ArgumentParser):
    """The parser of one subcommand. It adds its options when the subcommand is chosen."""

    def __init__(self, *, fill: Fill | None = None, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._fill = fill

    def add_options(self) -> None:
        """Import the subcommand's module and add its options, on the first call."""
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

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


def _serve(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.serve.command import add_options

    add_options(parser)


def _init(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.init import add_options

    add_options(parser)


def _run(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.run.command import add_options

    add_options(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.compare.command import add_options

    add_options(parser)


def _key(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.key import add_options

    add_options(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.doctor import add_options

    add_options(parser)


def _forest(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.forest import add_options

    add_options(parser)


def _corpus(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.corpus.command import add_options

    add_options(parser)


def _stages(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.stages import add_options

    add_options(parser)


def _top(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.top import add_options

    add_options(parser)


def _replay(parser: argparse.ArgumentParser) -> None:
    from agentspec.commands.replay import add_options

    add_options(parser)
