"""Options of ``python -m benchmarks core``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, add_quick, add_traces, chosen, outputs

DESCRIPTION = """\
Measure the suffix core against a peer, both doing the same work in turn on recorded model outputs: time to
append and to remove, memory, whole decode steps, indexing of prompts. Prints a table, then one line of JSON.
"""

EXAMPLES = """\
examples:
  python -m benchmarks core --traces DIR                    some minutes
  python -m benchmarks core --traces DIR --quick            less data, under a minute
  python -m benchmarks core --traces DIR --json out/core.json --plot out/core.png

DIR holds *.jsonl.gz files: a model call per line, with the keys session, prompt and response (texts). The
responses must come to about 3 million tokens, with --quick to 700,000; so must the prompts.

peers:
  arctic   arctic-inference 0.3.0, what vLLM's method "suffix" uses; `make bench-peer` builds it, GPU or not.
           Where it is missing, our own figures are still measured and ratios are null.
  none     our own figures only
"""


def add_options(benchmarks: Subparsers) -> None:
    """Add the options of ``python -m benchmarks core``."""
    core = benchmarks.add_parser(
        "core", help="the suffix trees: time and memory", description=DESCRIPTION, epilog=EXAMPLES
    )
    core.set_defaults(run=run_core)
    add_traces(core)
    core.add_argument("--peer", choices=("arctic", "none"), default="arctic", help="(%(default)s)")
    add_quick(core)
    add_outputs(core, plot="decode steps against live requests")


def run_core(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks core``."""
    with needed("bench"):
        from benchmarks.core.run import make_report
        from benchmarks.core.sizes import FULL, QUICK

        sizes = chosen(QUICK, FULL, is_quick=args.quick)
        return run(lambda announce: make_report(args.traces, args.peer, sizes, announce), outputs(args))
