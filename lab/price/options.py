"""Options of ``python -m lab price``; benchmark modules are imported when it runs."""

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

SHAPES = {"bundled": 192, "smollm-135m": 16, "qwen-0.5b": 8}  # and their numbers of calls, at least

DESCRIPTION = """\
Serve recorded calls with the embedded engine, 1, 4 and 16 at a time, with models of three shapes: without
drafts, at fixed prices of a draft token, and at the price that the engine learns from its steps. The outputs
are forced to the recorded ones, so that the weights may be random. All variants take turns, in two rounds,
and in more (five minutes) where these do not show if drafts make a load slower. One set has drafts that pay,
the other is open-ended text. Only steps in which all requests decode are timed: without prompts, and without
idle clients. Prints a table, then one line of JSON.
"""

EXAMPLES = """\
examples:
  python -m lab price --traces DIR --json out/price.json          an hour and a half on two idle cores
  python -m lab price --traces DIR --only bundled                 half an hour

parts; with --json, those that are not measured now stay as they are in the file:
  bundled        the bundled model, 3.7 M parameters
  smollm-135m    the shape of SmolLM2-135M, random weights
  qwen-0.5b      the shape of Qwen2.5-0.5B, random weights
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab price``."""
    price = experiments.add_parser(
        "price",
        help="the learned price of a draft, over shapes and loads",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    price.set_defaults(run=run_price)
    add_traces(price)
    add_parts(price, tuple(SHAPES))
    add_quick(price, "shorter calls, 1 and 4 at a time, one round")
    price.add_argument("--rounds", type=option_types.count, metavar="N", help="of each load, at least (2)")
    add_outputs(price, json="write the JSON here; parts that are not measured now stay in the file")


def run_price(args: argparse.Namespace) -> int:
    """Run ``python -m lab price``."""
    with needed("bench", "engine"):
        from lab.price.run import run
        from lab.price.sizes import FULL, QUICK

        sizes = chosen(QUICK, FULL, is_quick=args.quick, rounds=args.rounds)
        return run(args.only or tuple(SHAPES), args.traces, sizes, outputs(args))
