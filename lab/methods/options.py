"""Options of ``python -m lab methods``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentspec.commands import option_types
from agentspec.extras import needed
from benchmarks.harness.options import Subparsers, add_outputs, add_parts, add_quick, chosen, outputs

PARTS = ("sql", "sampling", "sql_budgets", "sampling_budgets")
OPEN_PARTS = ("open", "open_sampled", "open_budgets", "open_sampled_budgets")  # by default with --open-text

DESCRIPTION = """\
Compare drafting methods live in the embedded engine, with the bundled model, on text that it writes
itself: suffix trees, prompt look-up, LLMA, ANPD, REST, SAM-Decoding, Token Recycling, Lookahead, and with
--heads EAGLE-3, Medusa, MTP and a draft model. All take turns on the same calls, from nothing and again on
other calls. Each method's outputs are compared with those of no speculation. Prints a table, then one line of
JSON.
"""

EXAMPLES = """\
examples:
  python -m lab.sql_model.heads --out out/heads       train heads, half an hour each
  python -m lab methods --heads out/heads --json out/methods.json

parts; with --json, those that are not measured now stay as they are in the file:
  sql       the text-to-SQL pipeline, greedy, four questions at a time
  sampling  sixteen samples of each call of three of its stages, for an eighth of the questions
  open, open_sampled
            open-ended answers of a second model (python -m lab open-text), greedy and sampled
  sql_budgets, sampling_budgets, open_budgets, open_sampled_budgets
            on the same: trees with EAGLE-3 (open: with the draft model) against both parts, at
            equal numbers of draft tokens
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab methods``."""
    methods = experiments.add_parser(
        "methods",
        help="drafting methods live, on the model's own text",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    methods.set_defaults(run=run_methods)
    add_parts(methods, PARTS, OPEN_PARTS)
    methods.add_argument(
        "--heads", type=Path, metavar="DIR", help="folders eagle, medusa, mtp, draft_model with trained heads"
    )
    methods.add_argument(
        "--open-text", type=Path, metavar="DIR", help="a model of open-ended text with head and prompts"
    )
    add_quick(methods, "two questions of sql, one of sampling")
    methods.add_argument(
        "--questions",
        type=option_types.count,
        metavar="N",
        help="of sql, cold and again warm (24); twice as many open-ended answers",
    )
    add_outputs(methods, json="write the JSON here; parts that are not measured now stay in the file")


def run_methods(args: argparse.Namespace) -> int:
    """Run ``python -m lab methods``."""
    with needed("bench", "engine"):
        from lab.methods.run import run
        from lab.methods.sizes import FULL, QUICK
        from lab.methods.workloads import Places

        sizes = chosen(QUICK, FULL, is_quick=args.quick, num_questions=args.questions)
        parts = args.only or (PARTS if args.open_text is None else PARTS + OPEN_PARTS)
        return run(parts, sizes, Places(args.heads, args.open_text), outputs(args))
