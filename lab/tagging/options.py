"""Options of ``python -m lab tagging``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, outputs

DESCRIPTION = """\
Measure the processor time that tagging adds to a call of the openai client: a request's headers, and one
level of caller. No request is sent. Prints a table, then one line of JSON; exits with 1 if the bar is missed.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab tagging``."""
    tagging = experiments.add_parser("tagging", help="the cost of an adapter", description=DESCRIPTION)
    tagging.set_defaults(run=run_tagging)
    add_outputs(tagging)


def run_tagging(args: argparse.Namespace) -> int:
    """Run ``python -m lab tagging``."""
    with needed("bench"):
        from lab.tagging.run import make_report

        return run(make_report, outputs(args))
