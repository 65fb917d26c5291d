"""Options of ``python -m lab saving``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, counts, outputs

DESCRIPTION = """\
Is the time saved, which the server estimates, the time that is saved? Serve the text-to-SQL example with the
embedded engine and the bundled model, a few questions with drafts and the same without, in turn, and compare
the estimate with the decode times of both. Prints a table by stage, then one line of JSON.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab saving``."""
    saving = experiments.add_parser(
        "saving",
        help="the server's estimate of the time saved, against the time saved",
        description=DESCRIPTION,
    )
    saving.set_defaults(run=run_saving)
    saving.add_argument(
        "--questions",
        type=option_types.count,
        default=40,
        metavar="N",
        help="of seven calls each, for each number of clients (%(default)s)",
    )
    saving.add_argument(
        "--clients", type=counts, default=(1, 8), metavar="N,...", help="questions at a time (1,8)"
    )
    saving.add_argument("--threads", type=option_types.count, metavar="N", help="of the engine (all cores)")
    add_outputs(saving)


def run_saving(args: argparse.Namespace) -> int:
    """Run ``python -m lab saving``."""
    with needed("bench", "engine"):
        from lab.saving.run import make_report

        return run(
            lambda announce: make_report(args.questions, args.clients, args.threads, announce),
            outputs(args),
        )
