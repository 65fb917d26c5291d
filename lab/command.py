"""``python -m lab``: its command line; an experiment's modules are imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentspec.cli import run_command
from benchmarks.harness.options import command_line
from lab.compare import options as compare
from lab.methods import options as methods
from lab.open_text import options as open_text
from lab.paper import options as paper
from lab.persistence import options as persistence
from lab.price import options as price
from lab.prior import options as prior
from lab.scale import options as scale
from lab.stages import options as stages

EXPERIMENTS = (
    paper,
    compare,
    methods,
    open_text,
    prior,
    price,
    stages,
    scale,
    persistence,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment and return the exit status."""
    return run_command(build_parser(), argv)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    return command_line("python -m lab", "Find something out.", "experiments", EXPERIMENTS)
