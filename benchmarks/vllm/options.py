"""Options of ``python -m benchmarks vllm``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse

from agentspec.commands import option_types
from agentspec.extras import needed
from benchmarks.harness.options import (
    Subparsers,
    add_outputs,
    add_parts,
    add_quick,
    chosen,
    outputs,
)

V2_SCENARIOS = (  # a part each, in the order of SCENARIOS: with interpreted kernels all of them take an hour
    "v2_plain",
    "v2_structured_output",
    "v2_stop_strings",
    "v2_n_2",
    "v2_logprobs",
    "v2_cancelled",
    "v2_chunked_prefill",
    "v2_no_prefix_cache",
    "v2_preemption",
)
PARTS = ("lossless", "sql", "v2", *V2_SCENARIOS, "no_repeat", "soak")

DESCRIPTION = """\
Measure real vLLM with the plugin against vLLM without speculation and with its own method "suffix": are
outputs the same, how fast is the text-to-SQL example, does memory stay? Prints a table, then one line of
JSON. Starts one server at a time. Needs vLLM, arctic-inference 0.3.0 and the repository.
"""

EXAMPLES = """\
examples:
  python -m benchmarks vllm --json out/vllm.json                         all parts, some four hours
  python -m benchmarks vllm --quick                                      less of everything
  python -m benchmarks vllm --only soak --minutes 30 --json out/vllm.json

parts; with --json, those that are not measured now stay as they are in the file:
  lossless     outputs with the plugin and without, token by token, nine ways to run and to ask
  sql          the example through gateway and vLLM, 1, 4 and 8 requests at a time
  v2           model runner V2, in .venv-vllm-v2: the example and two ranks; slots per accepted token
  v2_SCENARIO  lossless with model runner V2, a part for each of its scenarios, such as v2_plain: all
               take an hour or more on a CPU, where V2's kernels are interpreted
  no_repeat    traffic that repeats nothing, 1, 8 and 32 requests at a time
  soak         16 clients, some of whom hang up; memory
"""


def add_options(benchmarks: Subparsers) -> None:
    """Add the options of ``python -m benchmarks vllm``."""
    vllm = benchmarks.add_parser(
        "vllm", help="real vLLM with the plugin", description=DESCRIPTION, epilog=EXAMPLES
    )
    vllm.set_defaults(run=run_vllm)
    add_parts(vllm, PARTS)
    add_quick(vllm, "less of everything: some minutes a part")
    vllm.add_argument(
        "--minutes", type=option_types.seconds, metavar="N", help="of the soak (30; --quick: 1)"
    )
    vllm.add_argument(
        "--questions", type=option_types.count, metavar="N", help="of the part sql (40; --quick: 3)"
    )
    vllm.add_argument(
        "--rounds", type=option_types.count, metavar="N", help="of the part sql (3; --quick: 1)"
    )
    add_outputs(vllm, json="write the JSON here; parts that are not measured now stay in the file")


def run_vllm(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks vllm``."""
    with needed("bench"):
        from benchmarks.vllm.run import run
        from benchmarks.vllm.sizes import FULL, QUICK
        from benchmarks.vllm.speculators import bundled_on_cpu

        sizes = chosen(
            QUICK,
            FULL,
            is_quick=args.quick,
            soak_minutes=args.minutes,
            num_questions=args.questions,
            num_rounds=args.rounds,
        )
        return run(bundled_on_cpu(), args.only or PARTS, sizes, outputs(args))
