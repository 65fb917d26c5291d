"""Options that several benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from agentspec.cli import CommandParser
from agentspec.commands import option_types
from agentspec.reporting.report import Outputs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    SizesT = TypeVar("SizesT", bound=DataclassInstance)

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class HasOptions(Protocol):
    """The module ``options`` of a benchmark."""

    @property
    def add_options(self) -> Callable[[Subparsers], None]:
        """Return the function that adds the benchmark's command."""


def command_line(
    prog: str, description: str, title: str, benchmarks: Sequence[HasOptions]
) -> argparse.ArgumentParser:
    """Return a parser with one command per benchmark."""
    parser: argparse.ArgumentParser = CommandParser(prog=prog, description=description)
    commands = parser.add_subparsers(title=title, required=True, metavar=title.removesuffix("s").upper())
    for benchmark in benchmarks:
        benchmark.add_options(commands)
    return parser


def add_traces(parser: argparse.ArgumentParser, *, required: bool = True, purpose: str = "") -> None:
    """Add ``--traces``."""
    text = f"recorded model calls{purpose}"
    parser.add_argument("--traces", type=Path, required=required, metavar="DIR", help=text)


def add_quick(parser: argparse.ArgumentParser, text: str = "the same figures from less data") -> None:
    """Add ``--quick``."""
    parser.add_argument("--quick", action="store_true", help=text)


def add_outputs(
    parser: argparse.ArgumentParser, *, json: str = "also write the JSON line here", plot: str = ""
) -> None:
    """Add ``--json``, and ``--plot`` if ``plot`` names what is plotted."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=json)
    if plot:
        parser.add_argument("--plot", type=Path, metavar="FILE", help=f"also plot {plot}, as .png or .svg")


def add_parts(parser: argparse.ArgumentParser, parts: Sequence[str], on_request: Sequence[str] = ()) -> None:
    """Add ``--only``, with the names of parts; those ``on_request`` do not run by default."""
    default = f"all but {', '.join(on_request)}" if on_request else "all"
    parser.add_argument(
        "--only",
        action="extend",
        default=[],
        type=part_names((*parts, *on_request)),
        metavar="PART,...",
        help=f"{', '.join((*parts, *on_request))}; repeatable (default: {default})",
    )


def part_names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of a comma-separated list of parts."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"parts are {', '.join(known)}, not {name!r}")
        return names

    return read


def counts(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of whole numbers, each at least 1."""
    return tuple(map(option_types.count, text.split(",")))


def outputs(args: argparse.Namespace) -> Outputs:
    """Return the files of the options of :func:`add_outputs`."""
    return Outputs(json=args.json, plot=getattr(args, "plot", None))


def chosen(quick: SizesT, full: SizesT, *, is_quick: bool, **given: Any) -> SizesT:
    """Return the quick or the full sizes, changed by the options that are not None."""
    return replace(
        quick if is_quick else full, **{name: value for name, value in given.items() if value is not None}
    )
