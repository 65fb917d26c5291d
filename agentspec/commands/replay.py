"""``agentspec replay``: its options. What they ask for is imported when it runs."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from agentspec.commands import option_types
from agentspec.distribution import DOCUMENTS
from agentspec.errors import ConfigError
from agentspec.extras import needed

METHODS = (
    "learned",
    "forest",
    "paper-stage",
    "paper-shared",
    "paper-request",
    "paper-global",
    "pld",
    "llma",
    "anpd",
    "rest",
    "recycling",
    "sam",
    "arctic",
)
DESCRIPTION = """\
Replay recorded model calls. Each method drafts, and the record stands for the model that verifies. Outputs
join the shared trees as they are written. Prints the speed-up on a GPU with 8 clients, tokens per step,
drafted and accepted tokens, and the time of drafting, the fastest method first. Then, for each file and for
all together: whether speculation is worth it on four kinds of machines, how predictable the stages are, and
which of them pays. A method with a price (--min-prob) is judged at the one that fits.
"""

EXAMPLES = (
    """\
examples:
  agentspec replay calls.jsonl                              what drafting would have saved
  agentspec replay calls.jsonl --tokenizer ./Qwen3-0.6B     with the tokenizer of your model
  agentspec replay DIR --method forest --method pld --markdown out/replay.md
  agentspec replay calls.jsonl --sessions 8 --mode tree --max-draft 64
  agentspec replay DIR --plot out/replay.png
  agentspec replay --compare DIR --limit 500 --json out/compare.json --plot out/compare.png

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
  paper-request  SuffixDecoding: only the request's tree
  paper-global   SuffixDecoding: only one tree per stage, without the request's
  pld            prompt look-up, n-grams of 2 to 5 tokens, as vLLM's method ngram
  llma           copies from the prompt only, after 2 tokens that match
  anpd           ANPD: the most frequent continuation by the n-grams of the request's text, 5 tokens down to 2
  rest           a datastore of all outputs, trees of what followed the longest match of up to 16 tokens
  recycling      Token Recycling, with the tokens that followed each one last in place of the model's top 8
  sam            SAM-Decoding alone: what last followed the longest match in the text or in all outputs
  arctic         arctic-inference's suffix cache, what vLLM's method suffix uses; only if asked for

--compare replays each file some thirty times: learned at eleven prices and the paper's rule, as chains and as
trees of 16, 32 and 64 nodes; then learned with a tree per stage and with one tree in equal memory, and beside
a stage that has learned something unrelated. Its table has a bar for each result; where no price draws level
on one data set the result is "not reached", and the bar is not met.
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
        help="one half of the tasks only: tune on one, report on the other (both; --compare: second)",
    )
    group.add_argument(
        "--jobs",
        type=option_types.count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes, one per file, with --compare one per replay (%(default)s)",
    )


def _add_method_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--compare",
        action="store_true",
        help="the learned rule against the paper's at matched budgets, each with settings of its own",
    )
    group.add_argument(
        "--method",
        action="append",
        choices=METHODS,
        metavar="METHOD",
        help=f"repeatable (default: all but arctic): {', '.join(METHODS)}",
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
        help="also draw, as .png or .svg: speed, drafts and where accepted tokens came from; with --compare "
        "accepted against drafted tokens by data set, and calibration",
    )


def run_replay(args: argparse.Namespace) -> int:
    """``agentspec replay``."""
    with needed("bench", "engine"):
        from agentspec.replay.jobs import HALVES, Plan, Selection
        from agentspec.replay.methods import Rule
        from agentspec.replay.run import run, run_compare
        from agentspec.reporting.report import Outputs

        rule = Rule(args.mode, args.max_draft, args.alpha, args.min_prob)
        selection = Selection(args.tokenizer, args.sessions, args.limit)
        outputs = Outputs(json=args.json, markdown=args.markdown, plot=args.plot)
        if args.compare:
            if args.method or rule != Rule():
                raise ConfigError("--compare has methods, modes, sizes and prices of its own: give it none")
            halves = HALVES if args.half == "both" else (args.half or "second",)
            return run_compare(args.input, selection, halves, args.jobs, outputs)
        if args.half in HALVES:
            selection = replace(selection, half=HALVES.index(args.half))
        methods = tuple(args.method or (name for name in METHODS if name != "arctic"))
        return run(args.input, Plan(methods, rule, selection), args.jobs, outputs)
