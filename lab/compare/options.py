"""The command line of the experiment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from agentspec.commands import option_types
from benchmarks.harness.options import Subparsers

DESCRIPTION = """\
The learned rule against the paper's at matched budgets, on recorded calls. Each file is replayed some thirty
times: learned at eleven prices and the paper's rule, as chains and as trees of 16, 32 and 64 nodes; then
learned with a tree per stage and with one tree in equal memory, and beside a stage that has learned something
unrelated. The table has a bar for each result; where no price draws level on one data set, the result is
"not reached" and the bar is not met.
"""


def add_options(experiments: Subparsers) -> None:
    """Add ``python -m lab compare``."""
    parser = experiments.add_parser(
        "compare", help="the learned rule against the paper's, replayed", description=DESCRIPTION
    )
    parser.set_defaults(run=_run)
    parser.add_argument("input", type=Path, nargs="+", metavar="FILE", help="recorded calls, or a folder")
    parser.add_argument("--tokenizer", default="tekken", metavar="DIR", help="(default: Tekken)")
    parser.add_argument("--sessions", type=option_types.count, default=1, metavar="N", help="(%(default)s)")
    parser.add_argument("--limit", type=option_types.count, metavar="N", help="calls of each file, at most")
    parser.add_argument("--half", choices=("first", "second", "both"), default="second", help="of the tasks")
    parser.add_argument("--jobs", type=option_types.count, default=os.cpu_count() or 1, metavar="N")
    for name in ("json", "markdown", "plot"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="also write this")


def _run(args: argparse.Namespace) -> int:
    from agentspec.replay.jobs import HALVES, Selection
    from agentspec.reporting.report import Outputs
    from lab.compare.run import run

    halves = HALVES if args.half == "both" else (args.half,)
    selection = Selection(args.tokenizer, args.sessions, args.limit)
    outputs = Outputs(json=args.json, markdown=args.markdown, plot=args.plot)
    return run(args.input, selection, halves, args.jobs, outputs)
