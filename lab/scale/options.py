"""Options of ``python -m lab scale``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, counts, outputs

RESULTS = Path("benchmarks/results/fleet.json")

DESCRIPTION = """\
Compute what fleets take that share all outputs through one Redis server: bytes, CPU and memory, and the
fewest shards with which every engine keeps up. Nothing is measured: the costs are those of the parts costs
and publish of the benchmark fleet. Prints a table, then one line of JSON.
"""

EXAMPLES = """\
examples:
  python -m lab scale
  python -m lab scale --outputs 1000 --replicas 2,8,32
  python -m benchmarks fleet --only costs,publish --traces DIR --json out/fleet.json
  python -m lab scale --results out/fleet.json      the same with the costs of this machine
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab scale``."""
    scale = experiments.add_parser(
        "scale",
        help="what a large fleet would take, from measured costs",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    scale.set_defaults(run=run_scale)
    scale.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FILE",
        help="written by the benchmark fleet (%(default)s)",
    )
    scale.add_argument(
        "--outputs",
        type=option_types.count,
        default=10_000,
        metavar="N",
        help="finished in a second, by all engines together (%(default)s)",
    )
    scale.add_argument(
        "--replicas", type=counts, default=(10, 100, 1000), metavar="N,...", help="engines (10,100,1000)"
    )
    scale.add_argument(
        "--tenants", type=option_types.count, default=1, metavar="N", help="of equal load (%(default)s)"
    )
    add_outputs(scale)


def run_scale(args: argparse.Namespace) -> int:
    """Run ``python -m lab scale``."""
    with needed("bench", "corpus"):
        from lab.scale.run import make_report

        return run(
            lambda _: make_report(args.results, args.outputs, args.replicas, args.tenants), outputs(args)
        )
