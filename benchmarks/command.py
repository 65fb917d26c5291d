"""``python -m benchmarks``: its command line; a benchmark's modules are imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentspec.cli import CommandParser, run_command
from benchmarks.churn import options as churn
from benchmarks.core import options as core
from benchmarks.fleet import options as fleet
from benchmarks.gateway import options as gateway
from benchmarks.gpu import options as gpu
from benchmarks.load import options as load
from benchmarks.methods import options as methods
from benchmarks.open_text import options as open_text
from benchmarks.paper import options as paper
from benchmarks.persistence import options as persistence
from benchmarks.price import options as price
from benchmarks.prior import options as prior
from benchmarks.saving import options as saving
from benchmarks.scale import options as scale
from benchmarks.stages import options as stages
from benchmarks.tagging import options as tagging
from benchmarks.vllm import options as vllm

BENCHMARKS = (
    core,
    churn,
    persistence,
    prior,
    paper,
    load,
    price,
    open_text,
    methods,
    saving,
    stages,
    tagging,
    gateway,
    fleet,
    scale,
    vllm,
    gpu,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit status."""
    return run_command(build_parser(), argv)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser: argparse.ArgumentParser = CommandParser(
        prog="python -m benchmarks", description="Measure what this project promises."
    )
    benchmarks = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    for benchmark in BENCHMARKS:
        benchmark.add_options(benchmarks)
    return parser
