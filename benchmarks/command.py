"""``python -m benchmarks``: its command line; a benchmark's modules are imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentspec.cli import run_command
from benchmarks.core import options as core
from benchmarks.fleet import options as fleet
from benchmarks.gateway import options as gateway
from benchmarks.gpu import options as gpu
from benchmarks.harness.options import command_line
from benchmarks.vllm import options as vllm

BENCHMARKS = (core, gateway, fleet, vllm, gpu)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit status."""
    return run_command(build_parser(), argv)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    return command_line(
        "python -m benchmarks", "Measure what this project promises.", "benchmarks", BENCHMARKS
    )
