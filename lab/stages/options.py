"""Options of ``python -m lab stages``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, add_traces, outputs

DESCRIPTION = """\
Send untagged calls whose stages are known: the text-to-SQL example's, made-up workflows with slots, documents
and examples in their prompts, and recorded ones. Are the stages found (adjusted Rand index, 1 = all), in any
order, and what does a request cost? Six kinds of workflows whose conversations grow have bars: the index as
served while calls add up to 5,000, and the same names after a restart without a file. Drain3 is measured too,
if it is installed. Prints a table, then one line of JSON.
"""

EXAMPLES = """\
examples:
  python -m lab stages                               some seconds
  python -m lab stages --traces DIR --json out/stages.json

DIR holds *.jsonl.gz files: a model call per line, with the keys session, stage and prompt (texts). Prompts
with roles have them in lines like <|system|>. Stages of one file whose prompts are the same, word for word,
are one. `pip install drain3==0.9.11` adds the comparison.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab stages``."""
    stages = experiments.add_parser(
        "stages",
        help="stages found in untagged calls, and the cost",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    stages.set_defaults(run=run_stages)
    add_traces(stages, required=False, purpose=", with their stages")
    stages.add_argument(
        "--calls", type=option_types.count, default=1200, metavar="N", help="of each file (%(default)s)"
    )
    stages.add_argument(
        "--variants",
        type=option_types.count,
        default=3,
        metavar="N",
        help="of each kind of workflow (%(default)s)",
    )
    stages.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of samples and orders (%(default)s)"
    )
    add_outputs(stages)


def run_stages(args: argparse.Namespace) -> int:
    """Run ``python -m lab stages``."""
    with needed("bench"):
        from lab.stages.run import make_report

        return run(
            lambda announce: make_report(args.traces, args.calls, args.variants, args.seed, announce),
            outputs(args),
        )
