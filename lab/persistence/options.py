"""Options of ``python -m lab persistence``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, add_quick, add_traces, chosen, outputs

DESCRIPTION = """\
Measure the time to save and to load a forest, and decode steps of 64 live requests meanwhile. Prints a table,
then one line of JSON.
"""

EXAMPLES = """\
examples:
  python -m lab persistence --traces DIR
  python -m lab persistence --traces DIR --quick --json out/persistence.json

DIR holds recorded calls as for core: about 3 million tokens of responses, with --quick 700,000.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab persistence``."""
    persistence = experiments.add_parser(
        "persistence",
        help="saving and loading a forest during decode steps",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    persistence.set_defaults(run=run_persistence)
    add_traces(persistence)
    add_quick(persistence, "a quarter of the tokens")
    add_outputs(persistence)


def run_persistence(args: argparse.Namespace) -> int:
    """Run ``python -m lab persistence``."""
    with needed("bench"):
        from benchmarks.core.sizes import FULL, QUICK
        from lab.persistence.run import make_report

        sizes = chosen(QUICK, FULL, is_quick=args.quick)
        return run(lambda announce: make_report(args.traces, sizes, announce), outputs(args))
