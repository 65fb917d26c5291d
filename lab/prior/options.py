"""Options of ``python -m lab prior``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentspec.extras import needed
from benchmarks.harness.options import (
    Subparsers,
    add_outputs,
    add_parts,
    add_quick,
    add_traces,
    chosen,
    outputs,
)

PARTS = ("first", "second", "cold")

DESCRIPTION = """\
Make the prior of the learned rule: what it has learned in the stages of all recorded sets. Measure it on
each set with the prior of the sets of other workflows (whose names begin with another word) and without a
prior, against the paper's rule: tokens accepted at equal drafts, drafts for equal tokens, calibration.
Prints a table, then one line of JSON.
"""

EXAMPLES = """\
examples:
  python -m lab prior --traces DIR --json out/prior.json              some ten minutes on two cores
  python -m lab prior --traces DIR --only cold
  python -m lab prior --traces DIR --only cold --source FILE.cpp      also write the prior of all sets

parts; with --json, those that are not measured now stay as they are in the file:
  first, second   450 calls of this half of each set
  cold            the first 30 calls of each half
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab prior``."""
    prior = experiments.add_parser(
        "prior", help="what the learned rule starts from", description=DESCRIPTION, epilog=EXAMPLES
    )
    prior.set_defaults(run=run_prior)
    add_traces(prior)
    add_parts(prior, PARTS)
    prior.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="write the prior of all sets here, as the C++ file acceptance_prior.cpp of the core",
    )
    add_quick(prior, "20 calls of each half, 10 for cold")
    add_outputs(prior, json="write the JSON here; parts that are not measured now stay in the file")


def run_prior(args: argparse.Namespace) -> int:
    """Run ``python -m lab prior``."""
    with needed("bench"):
        from lab.prior.run import run
        from lab.prior.sizes import FULL, QUICK

        sizes = chosen(QUICK, FULL, is_quick=args.quick)
        return run(args.only or PARTS, args.traces, sizes, args.source, outputs(args))
