"""Options of ``python -m lab load``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, counts, outputs

DESCRIPTION = """\
Serve the text-to-SQL example's calls with the embedded engine and the bundled model, 1 to 16 at a time:
without speculation, at fixed prices of a draft token, and at the price that the engine learns from its
steps. All take turns, and outputs are compared. Prints a table, then one line of JSON.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab load``."""
    load = experiments.add_parser(
        "load",
        help="the embedded engine under load, by the price of a draft token",
        description=DESCRIPTION,
    )
    load.set_defaults(run=run_load)
    load.add_argument(
        "--questions",
        type=option_types.count,
        default=8,
        metavar="N",
        help="of seven calls each, at least (%(default)s)",
    )
    load.add_argument(
        "--rounds",
        type=option_types.count,
        default=5,
        metavar="N",
        help="each from nothing; medians count (%(default)s)",
    )
    load.add_argument(
        "--clients",
        type=counts,
        default=(1, 2, 4, 8, 16),
        metavar="N,...",
        help="requests at a time (1,2,4,8,16)",
    )
    add_outputs(load)


def run_load(args: argparse.Namespace) -> int:
    """Run ``python -m lab load``."""
    with needed("bench", "engine"):
        from lab.load.measure import Sizes
        from lab.load.run import make_report

        sizes = Sizes(args.questions, args.rounds, args.clients)
        return run(lambda announce: make_report(sizes, announce), outputs(args))
