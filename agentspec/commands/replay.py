"""``agentspec replay``: its options. What they ask for is imported when it runs."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from agentspec.commands import option_types
from agentspec.distribution import DOCUMENTS
from agentspec.extras import needed

METHODS = (
    "learned",
    "forest",
    "paper-stage",
    "paper-shared",
    "pld",
)
DESCRIPTION = """\
Replay recorded model calls. Each method drafts, and the record stands for the model that verifies. Outputs
join the shared trees as they are written. Prints the speed-up on a GPU with 8 clients, tokens per step,
drafted and accepted tokens, and the time of drafting, the fastest method first. Then, for each file and for
all together: whether speculation is worth it on four kinds of machines, and which stages pay. A method with a
price (--min-prob) is judged at the one that fits.
"""

EXAMPLES = (
    """\
examples:
  agentspec replay calls.jsonl                              what drafting would have saved
  agentspec replay calls.jsonl --tokenizer ./Qwen3-0.6B     with the tokenizer of your model
  agentspec replay DIR --method forest --method pld --markdown out/replay.md
  agentspec replay calls.jsonl --sessions 8 --mode tree --max-draft 64
  agentspec replay DIR --plot out/replay.png

A line of a *.jsonl or *.jsonl.gz file (or a value of a list in a *.json file) is a call, {"prompt": TEXT,
"response": TEXT}, with session, stage and task if known, or the same in OpenAI's form, {"messages": [...],
"response": ...}, or a whole chat, {"messages": [...]}: every answer is a call. Read as well: bodies of the
Responses API and of Anthropic's ({"request": ..., "response": ...}), OpenAI batches with their requests,
generations of Langfuse, and OpenTelemetry's gen_ai spans. Lines that are no calls are left out and counted.
"""
    f"""{DOCUMENTS}/replay-engine.md has the forms.
"""
    """
methods:
  learned        request, session, stage and workflow trees together, tokens by their chance to be accepted
  forest         request, session, stage, workflow and tenant trees together, as the forest is by default
  paper-stage    SuffixDecoding: the request's tree and one per stage
  paper-shared   SuffixDecoding: the request's tree and one of all outputs
  pld            prompt look-up, n-grams of 2 to 5 tokens, as vLLM's method ngram
"""
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``agentspec replay``."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.set_defaults(run=run_replay)
    parser.add_argument(
        "input", type=Path, nargs="+", metavar="FILE", help="recorded calls, or a folder of such files"
    )
    _add_selection_options(parser.add_argument_group("which calls"))
    _add_method_options(parser.add_argument_group("what drafts"))
    _add_report_options(parser.add_argument_group("output"))


def _add_selection_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer",
        default="tekken",
        metavar="DIR",
        help="folder with a tokenizer.json (default: Tekken, packaged)",
    )
    group.add_argument(
        "--sessions",
        type=option_types.count,
        default=1,
        metavar="N",
        help="sessions at the same time (%(default)s)",
    )
    group.add_argument("--limit", type=option_types.count, metavar="N", help="calls of each file, at most")
    group.add_argument(
        "--half",
        choices=("first", "second", "both"),
        help="one half of the tasks only: tune on one, report on the other (both)",
    )
    group.add_argument(
        "--jobs",
        type=option_types.count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes, one per file (%(default)s)",
    )


def _add_method_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--method",
        action="append",
        choices=METHODS,
        metavar="METHOD",
        help=f"repeatable (default: all): {', '.join(METHODS)}",
    )
    group.add_argument("--mode", choices=("chain", "tree"), default="chain", help="(%(default)s)")
    group.add_argument(
        "--max-draft", type=option_types.count, default=32, metavar="N", help="tokens per draft (%(default)s)"
    )
    group.add_argument(
        "--alpha",
        type=float,
        default=4.0,
        metavar="X",
        help="drafts of at most X times the match (%(default)s)",
    )
    group.add_argument(
        "--min-prob",
        type=float,
        default=0.1,
        metavar="P",
        help="less probable tokens are not drafted (%(default)s)",
    )


def _add_report_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the figures as a line of JSON, by stage, source and match length",
    )
    group.add_argument("--markdown", type=Path, metavar="FILE", help="also write tables by stage")
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="also draw, as .png or .svg: speed, drafts and where accepted tokens came from",
    )


def run_replay(args: argparse.Namespace) -> int:
    """``agentspec replay``."""
    with needed("bench", "engine"):
        from agentspec.replay.jobs import HALVES, Plan, Selection
        from agentspec.replay.methods import Rule
        from agentspec.replay.run import run
        from agentspec.reporting.report import Outputs

        rule = Rule(args.mode, args.max_draft, args.alpha, args.min_prob)
        selection = Selection(args.tokenizer, args.sessions, args.limit)
        outputs = Outputs(json=args.json, markdown=args.markdown, plot=args.plot)
        if args.half in HALVES:
            selection = replace(selection, half=HALVES.index(args.half))
        return run(args.input, Plan(tuple(args.method or METHODS), rule, selection), args.jobs, outputs)
