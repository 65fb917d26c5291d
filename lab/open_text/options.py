"""Options of ``python -m lab open-text``; its modules are imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentspec.extras import needed
from benchmarks.harness.options import Subparsers, add_traces

DESCRIPTION = """\
Train a small model of open-ended text, with EAGLE-3, MTP and Medusa heads and a draft model, for `python -m
lab methods --open-text`. It learns one half of the recorded answers of Spec-Bench, of a tree of
thoughts and of generated code, and is measured on prompts of the other half. Some 135 minutes on one core; if
it is stopped, it continues with the part it was at. The model can write, but knows nothing: it is a text to
draft for, no assistant.
"""

EXAMPLES = """\
examples:
  python -m lab open-text --traces DIR --out out/open_text
  python -m lab methods --open-text out/open_text --only open,open_sampled --json out/methods.json
"""


def add_options(experiments: Subparsers) -> None:
    """Add the options of ``python -m lab open-text``."""
    parser = experiments.add_parser(
        "open-text",
        help="train a model whose open-ended text methods are compared on",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run_open_text)
    add_traces(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("out/open_text"), metavar="DIR", help="model, heads and prompts"
    )
    parser.add_argument("--minutes", type=_minutes, default=35.0, metavar="N", help="most of the model (35)")
    parser.add_argument(
        "--head-minutes",
        type=_minutes,
        default=20.0,
        metavar="N",
        help="most of each head (20)",
    )
    parser.add_argument(
        "--draft-minutes", type=_minutes, default=40.0, metavar="N", help="most of its draft model (40)"
    )


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= 600:
        raise argparse.ArgumentTypeError(f"minutes are above 0 and at most 600, not {text}")
    return minutes


def run_open_text(args: argparse.Namespace) -> int:
    """Run ``python -m lab open-text``."""
    with needed("bench", "engine"):
        from lab.open_text.train import Sizes, build

        build(args.traces, args.out, Sizes(args.minutes, args.head_minutes, args.draft_minutes))
    return 0
