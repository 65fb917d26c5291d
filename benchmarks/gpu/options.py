"""Options of ``python -m benchmarks gpu``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import announcer
from benchmarks.harness.options import Subparsers, add_quick, add_traces

DESCRIPTION = """\
Measure vLLM on a GPU: recorded agent calls, forced through a model of Llama-8B's shape with random weights.
"""

PACK_EXAMPLES = """\
examples:
  python -m benchmarks gpu pack --traces DIR --out parts --python 3.12
  python -m benchmarks gpu pack --traces DIR --out parts --vllm 0.33.0 --wheels wheels-0.33.txt

Copy the folder to the machine. There: python join.py
"""

VLLM = "0.26.0"  # the release for torch 2.11
MOST_PART_MIB = 45


def add_options(benchmarks: Subparsers) -> None:
    """Add the options of ``python -m benchmarks gpu``."""
    gpu = benchmarks.add_parser("gpu", help="vLLM on a GPU, recorded calls forced", description=DESCRIPTION)
    commands = gpu.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_pack(commands)


def _add_pack(commands: Subparsers) -> None:
    pack = commands.add_parser(
        "pack", help="make the parts for a GPU machine without a package index", epilog=PACK_EXAMPLES
    )
    pack.set_defaults(run=run_pack)
    add_traces(pack)
    pack.add_argument("--out", type=Path, required=True, metavar="DIR", help="an empty or new folder")
    pack.add_argument("--vllm", default=VLLM, metavar="VERSION", help="%(default)s")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pack.add_argument("--python", default=here, metavar="VERSION", help="of the machine (%(default)s)")
    pack.add_argument(
        "--wheels",
        type=Path,
        default=Path(__file__).with_name("wheels.txt"),
        metavar="FILE",
        help="requirements to pack, without their own (wheels.txt beside the benchmark)",
    )
    pack.add_argument(
        "--part-mib",
        type=option_types.count,
        default=MOST_PART_MIB,
        metavar="N",
        help="most MiB of a part (%(default)s)",
    )
    add_quick(pack, "few and short calls")


def run_pack(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks gpu pack``."""
    with needed("bench"):
        from agentspec.replay import traces
        from benchmarks.gpu.calls import FULL, QUICK, prepare
        from benchmarks.gpu.pack import MIB, Target, pack

        announce = announcer()
        sizes = QUICK if args.quick else FULL
        calls = prepare(args.traces, sizes, traces.tokenizer(), announce)
        target = Target(args.vllm, args.python, args.wheels)
        packed = pack(target, calls, args.out, args.part_mib * MIB, announce)
        announce("done")
        total = sum(packed.part_bytes) / MIB
        print(f"{packed.num_files} files in {len(packed.part_bytes)} parts, {total:.0f} MiB, in {args.out}")
        return 0
