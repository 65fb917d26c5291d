"""Options of ``python -m lab churn``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import run
from benchmarks.harness.options import Subparsers, add_outputs, add_quick, add_traces, chosen, outputs

MAX_TOKENS = 10**12
MAX_BUDGET_MB = 1 << 20
SCOPES = ("stage", "tenant", "forest", "router", "popular")

DESCRIPTION = """\
Send many more tokens through the forest than its budget holds, as requests that come and go: does memory
stay within the budget, does any call take long, do the oldest outputs go first? Prints a table, then one line
of JSON.
"""

EXAMPLES = """\
examples:
  python -m lab churn --traces DIR            20 million tokens for each scope, a quarter of an hour
  python -m lab churn --traces DIR --quick    less data and a smaller budget, some minutes
  python -m lab churn --traces DIR --scope tenant --tokens 5e6 --budget-mb 64

DIR holds *.jsonl.gz files: a model call per line, with the key response (a text); any number will do.

scopes, what the budget is for:
  stage    the tree of one stage, no other being kept
  tenant   all trees of a tenant: five stages, their workflow, the tenant; and its live requests
  forest   all trees of three such tenants
  router   a tenant; for each long output a hundred of 1 to 3 tokens, then long ones only
  popular  a tenant, most of whose outputs are the same 1,000 tokens; then all of them differ

Every scope is run twice, and of each call the lesser time counts.
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab churn``."""
    churn = experiments.add_parser(
        "churn",
        help="memory and calls when much more is learned than fits",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    churn.set_defaults(run=run_churn)
    add_traces(churn)
    churn.add_argument("--scope", choices=(*SCOPES, "all"), default="all", help="(%(default)s)")
    churn.add_argument(
        "--tokens", type=_tokens, metavar="N", help="of each scope (20e6, router, popular: 4e6; --quick: 3e6)"
    )
    churn.add_argument(
        "--budget-mb", type=_budget_mb, metavar="N", help="MiB (128, router, popular: 64; --quick: 64)"
    )
    add_quick(churn)
    add_outputs(churn, plot="memory against tokens")


def run_churn(args: argparse.Namespace) -> int:
    """Run ``python -m lab churn``."""
    with needed("bench"):
        from lab.churn.run import make_report
        from lab.churn.sizes import FULL, QUICK

        sizes = chosen(
            QUICK,
            FULL,
            is_quick=args.quick,
            tokens=args.tokens,
            hard_tokens=args.tokens,
            budget_mb=args.budget_mb,
            hard_budget_mb=args.budget_mb,
        )
        scopes = SCOPES if args.scope == "all" else (args.scope,)
        return run(lambda announce: make_report(args.traces, scopes, sizes, announce), outputs(args))


def _tokens(text: str) -> int:
    number = option_types.number(text)
    if not 1 <= number <= MAX_TOKENS:
        raise argparse.ArgumentTypeError(f"a number of tokens is positive, like 20e6, not {text!r}")
    return int(number)


def _budget_mb(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_BUDGET_MB):
        raise argparse.ArgumentTypeError(f"a budget is a whole number of MiB, at least 1, not {text!r}")
    return int(text)
