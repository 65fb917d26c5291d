"""Options of ``python -m lab paper``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from agentspec.commands import option_types
from agentspec.extras import needed
from benchmarks.harness.options import Subparsers, add_traces

SECTIONS = ("fig2", "fig4", "fig7", "fig8", "fig9", "table1", "live")

DESCRIPTION = """\
Reproduce the figures of the SuffixDecoding paper from recorded calls and a simulated verifier. The section
live shows what `python -m lab methods` has measured. Writes
paper.md; its plots and all figures are in the folder paper beside it.
"""

EXAMPLES = """\
examples:
  python -m lab paper --traces DIR                     everything, some ten minutes on 2 cores
  python -m lab paper --traces DIR --only fig8         one section; the others stay unchanged
  python -m lab paper --traces DIR --limit 50 --docs out

DIR holds the eleven *.jsonl.gz files that the document names, with the lines that `agentspec replay` reads.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab paper``."""
    paper = experiments.add_parser(
        "paper", help="figures of the SuffixDecoding paper", description=DESCRIPTION, epilog=EXAMPLES
    )
    paper.set_defaults(run=run_paper)
    add_traces(paper)
    paper.add_argument(
        "--docs", type=Path, default=Path("lab"), metavar="DIR", help="where to write (%(default)s)"
    )
    paper.add_argument(
        "--only", action="append", default=[], choices=SECTIONS, help="repeatable (default: all)"
    )
    paper.add_argument("--limit", type=option_types.count, metavar="N", help="calls of each file, at most")
    paper.add_argument(
        "--jobs",
        type=option_types.count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (%(default)s)",
    )


def run_paper(args: argparse.Namespace) -> int:
    """Run ``python -m lab paper``."""
    with needed("bench"):
        from lab.paper.run import run

        return run(args.traces, args.docs, args.only, args.limit, args.jobs)
