"""``agentspec bench``: benchmarks for users. ``python -m benchmarks`` runs the others in a checkout."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from agentspec.commands import bench_engine
from agentspec.errors import ConfigError

RENAMED = ("churn", "core", "gateway", "paper", "saving", "stages", "tagging", "vllm")
NO_OPTIONS = "\0"  # no argument starts with it: each is passed on


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec bench``."""
    parser.description = (
        "Measure what drafting gains. `python -m benchmarks` has more benchmarks in a checkout."
    )
    benchmarks = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    bench_engine.add_options(benchmarks)
    load = benchmarks.add_parser(
        "load", help="the embedded engine under load (in a checkout)", prefix_chars=NO_OPTIONS, add_help=False
    )
    _forward(load, "load")
    for name in RENAMED:
        _forward(benchmarks.add_parser(name, prefix_chars=NO_OPTIONS, add_help=False), name)


def _forward(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(run=partial(_run_in_checkout, name))


def _run_in_checkout(name: str, args: argparse.Namespace) -> int:
    command = f"python -m benchmarks {name}"
    try:
        from benchmarks.command import main
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.command"):
            raise
        message = f"this benchmark is part of the repository: run `{command}` in a checkout"
        raise ConfigError(message) from None
    if name in RENAMED:
        print(f"agentspec: `agentspec bench {name}` is now `{command}`", file=sys.stderr)
    return main([name, *args.arguments])
