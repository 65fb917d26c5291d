"""Options of ``python -m benchmarks``; a benchmark's modules are imported when it runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentspec.cli import CommandParser, run_command
from agentspec.commands import option_types
from agentspec.extras import needed
from benchmarks.gateway import options as gateway_options
from benchmarks.vllm import options as vllm_options

MAX_TOKENS = 10**12
MAX_BUDGET_MB = 1 << 20
PAPER_SECTIONS = ("fig2", "fig4", "fig7", "fig8", "fig9", "table1")
SCOPES = ("stage", "tenant", "forest", "router", "popular")

CORE_DESCRIPTION = """\
Measure the suffix core against a peer, both doing the same work in turn on recorded model outputs: time to
append and to remove, memory, whole decode steps, indexing of prompts. Prints a table, then one line of JSON.
"""

CORE_EXAMPLES = """\
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

CHURN_DESCRIPTION = """\
Send many more tokens through the forest than its budget holds, as requests that come and go: does memory
stay within the budget, does any call take long, do the oldest outputs go first? Prints a table, then one line
of JSON.
"""

CHURN_EXAMPLES = """\
examples:
  python -m benchmarks churn --traces DIR            20 million tokens for each scope, a quarter of an hour
  python -m benchmarks churn --traces DIR --quick    less data and a smaller budget, some minutes
  python -m benchmarks churn --traces DIR --scope tenant --tokens 5e6 --budget-mb 64

DIR holds *.jsonl.gz files: a model call per line, with the key response (a text); any number will do.

scopes, what the budget is for:
  stage    the tree of one stage, no other being kept
  tenant   all trees of a tenant: five stages, their workflow, the tenant; and its live requests
  forest   all trees of three such tenants
  router   a tenant; for each long output a hundred of 1 to 3 tokens, then long ones only
  popular  a tenant, most of whose outputs are the same 1,000 tokens; then all of them differ

Every scope is run twice, and of each call the lesser time counts.
"""

PAPER_DESCRIPTION = """\
Make the figures of the SuffixDecoding paper again, from recorded calls against a simulated verifier: writes
paper.md, and its plots and all figures into the folder paper beside it.
"""

PAPER_EXAMPLES = """\
examples:
  python -m benchmarks paper --traces DIR                     everything, some ten minutes on 2 cores
  python -m benchmarks paper --traces DIR --only fig8         one section; the others stay as they are
  python -m benchmarks paper --traces DIR --limit 50 --docs out

DIR holds the eleven *.jsonl.gz files that the document names, with the lines that `agentspec replay` reads.
"""

SAVING_DESCRIPTION = """\
Is the time saved, which the server estimates, the time that is saved? Serve the text-to-SQL example with the
embedded engine and the bundled model, a few questions with drafts and the same without, in turn, and compare
the estimate with the decode times of both. Prints a table by stage, then one line of JSON.
"""

LOAD_DESCRIPTION = """\
Serve the text-to-SQL example's calls with the embedded engine and the bundled model, 1 to 16 at a time:
without speculation, at fixed prices of a draft token, and at the price that the engine learns from its
steps. All take turns, and outputs are compared. Prints a table, then one line of JSON.
"""


STAGES_DESCRIPTION = """\
Send calls whose stage is known without telling it: the text-to-SQL example's, made-up workflows with slots,
documents and examples in their prompts, and recorded ones. Are the stages found (adjusted Rand index,
1 = all), in any order, and what does a request cost? Beside it Drain3, if it is installed. Prints a table,
then one line of JSON.
"""

STAGES_EXAMPLES = """\
examples:
  python -m benchmarks stages                               some seconds
  python -m benchmarks stages --traces DIR --json out/stages.json

DIR holds *.jsonl.gz files: a model call per line, with the keys session, stage and prompt (texts). Prompts
with roles have them in lines like <|system|>. Stages of one file whose prompts are the same, word for word,
are one. `pip install drain3==0.9.11` adds the comparison.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit status."""
    return run_command(build_parser(), argv)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser: argparse.ArgumentParser = CommandParser(
        prog="python -m benchmarks", description="Measure what this project promises."
    )
    benchmarks = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    _add_core(benchmarks)
    _add_churn(benchmarks)
    _add_paper(benchmarks)
    _add_load(benchmarks)
    _add_stages(benchmarks)
    benchmarks.add_parser("tagging", help="what an adapter costs a call").set_defaults(run=run_tagging)
    _add_saving(benchmarks)
    vllm_options.add_options(benchmarks)
    gateway_options.add_options(benchmarks)
    return parser


def _add_core(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    core = benchmarks.add_parser(
        "core",
        help="the suffix trees: time and memory",
        description=CORE_DESCRIPTION,
        epilog=CORE_EXAMPLES,
    )
    core.set_defaults(run=run_core)
    core.add_argument("--traces", type=Path, required=True, metavar="DIR", help="recorded model calls")
    core.add_argument("--peer", choices=("arctic", "none"), default="arctic", help="(%(default)s)")
    core.add_argument("--quick", action="store_true", help="the same figures from less data")
    core.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    core.add_argument("--plot", type=Path, metavar="PNG", help="also draw decode steps against live requests")


def _add_churn(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    churn = benchmarks.add_parser(
        "churn",
        help="memory and calls when much more is learned than fits",
        description=CHURN_DESCRIPTION,
        epilog=CHURN_EXAMPLES,
    )
    churn.set_defaults(run=run_churn)
    churn.add_argument("--traces", type=Path, required=True, metavar="DIR", help="recorded model calls")
    churn.add_argument("--scope", choices=(*SCOPES, "all"), default="all", help="(%(default)s)")
    churn.add_argument(
        "--tokens", type=_tokens, metavar="N", help="of each scope (20e6, router, popular: 4e6; --quick: 3e6)"
    )
    churn.add_argument(
        "--budget-mb", type=_budget_mb, metavar="N", help="MiB (128, router, popular: 64; --quick: 64)"
    )
    churn.add_argument("--quick", action="store_true", help="the same figures from less data")
    churn.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    churn.add_argument("--plot", type=Path, metavar="PNG", help="also draw memory against tokens")


def _add_paper(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    paper = benchmarks.add_parser(
        "paper",
        help="the figures of the SuffixDecoding paper, again",
        description=PAPER_DESCRIPTION,
        epilog=PAPER_EXAMPLES,
    )
    paper.set_defaults(run=run_paper)
    paper.add_argument("--traces", type=Path, required=True, metavar="DIR", help="recorded model calls")
    paper.add_argument(
        "--docs", type=Path, default=Path("docs"), metavar="DIR", help="where to write (%(default)s)"
    )
    paper.add_argument(
        "--only", action="append", default=[], choices=PAPER_SECTIONS, help="repeatable (default: all)"
    )
    paper.add_argument("--limit", type=option_types.count, metavar="N", help="calls of each file, at most")
    paper.add_argument(
        "--jobs",
        type=option_types.count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (%(default)s)",
    )


def _add_load(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    load = benchmarks.add_parser(
        "load",
        help="the embedded engine under load, by the price of a draft token",
        description=LOAD_DESCRIPTION,
    )
    load.set_defaults(run=run_load)
    load.add_argument(
        "--questions",
        type=option_types.count,
        default=8,
        metavar="N",
        help="of seven calls each, at least (%(default)s)",
    )
    load.add_argument(
        "--rounds",
        type=option_types.count,
        default=5,
        metavar="N",
        help="each from nothing; medians count (%(default)s)",
    )
    load.add_argument(
        "--clients",
        type=_counts,
        default=(1, 2, 4, 8, 16),
        metavar="N,...",
        help="requests at a time (1,2,4,8,16)",
    )
    load.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")


def _add_stages(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stages = benchmarks.add_parser(
        "stages",
        help="are stages found that nobody told of, and at what price",
        description=STAGES_DESCRIPTION,
        epilog=STAGES_EXAMPLES,
    )
    stages.set_defaults(run=run_stages)
    stages.add_argument("--traces", type=Path, metavar="DIR", help="recorded model calls, with their stages")
    stages.add_argument(
        "--calls", type=option_types.count, default=1200, metavar="N", help="of each file (%(default)s)"
    )
    stages.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of samples and orders (%(default)s)"
    )
    stages.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")


def _add_saving(benchmarks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    saving = benchmarks.add_parser(
        "saving",
        help="the server's estimate of the time saved, against the time saved",
        description=SAVING_DESCRIPTION,
    )
    saving.set_defaults(run=run_saving)
    saving.add_argument(
        "--questions",
        type=option_types.count,
        default=40,
        metavar="N",
        help="of seven calls each, for each number of clients (%(default)s)",
    )
    saving.add_argument(
        "--clients", type=_counts, default=(1, 8), metavar="N,...", help="questions at a time (1,8)"
    )
    saving.add_argument("--threads", type=option_types.count, metavar="N", help="of the engine (all cores)")
    saving.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")


def run_core(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks core``."""
    with needed("bench"):
        from benchmarks.core.run import run
        from benchmarks.core.sizes import FULL, QUICK

        return run(args.traces, args.peer, QUICK if args.quick else FULL, args.json, args.plot)


def run_churn(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks churn``."""
    with needed("bench"):
        from benchmarks.churn.run import run
        from benchmarks.churn.sizes import FULL, QUICK

        chosen = {"tokens": args.tokens, "budget_mb": args.budget_mb}
        chosen |= {f"hard_{name}": value for name, value in chosen.items()}
        given = {name: value for name, value in chosen.items() if value is not None}
        sizes = replace(QUICK if args.quick else FULL, **given)
        scopes = SCOPES if args.scope == "all" else (args.scope,)
        return run(args.traces, scopes, sizes, args.json, args.plot)


def run_paper(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks paper``."""
    with needed("bench"):
        from benchmarks.paper.run import run

        return run(args.traces, args.docs, args.only, args.limit, args.jobs)


def run_load(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks load``."""
    with needed("bench", "engine"):
        from benchmarks.load.measure import Sizes
        from benchmarks.load.run import run

        return run(Sizes(args.questions, args.rounds, args.clients), args.json)


def run_saving(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks saving``."""
    with needed("bench", "engine"):
        from benchmarks.saving import run

        return run(args.questions, args.clients, args.threads, args.json)


def run_tagging(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks tagging``."""
    with needed("bench"):
        from benchmarks.tagging import run

        return run()


def run_stages(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks stages``."""
    with needed("bench"):
        from benchmarks.stages.run import run

        return run(args.traces, args.calls, args.seed, args.json)


def _tokens(text: str) -> int:
    number = option_types.number(text)
    if not 1 <= number <= MAX_TOKENS:
        raise argparse.ArgumentTypeError(f"a number of tokens is positive, like 20e6, not {text!r}")
    return int(number)


def _budget_mb(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_BUDGET_MB):
        raise argparse.ArgumentTypeError(f"a budget is a whole number of MiB, at least 1, not {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(option_types.count, text.split(",")))
