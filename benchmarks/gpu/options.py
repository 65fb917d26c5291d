"""Options of ``python -m benchmarks gpu``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.commands import option_types
from agentspec.extras import needed
from agentspec.reporting.report import Announce, Report, announcer, run
from benchmarks.harness.options import Subparsers, add_outputs, add_quick, outputs

if TYPE_CHECKING:
    from benchmarks.gpu.calls import Calls

DESCRIPTION = """\
Measure vLLM on a GPU: recorded agent calls, forced through a model of Llama-8B's shape with random weights.
"""

PACK_EXAMPLES = """\
examples:
  python -m benchmarks gpu pack --traces DIR --out parts --python 3.12
  python -m benchmarks gpu pack --traces DIR --out parts --vllm 0.26.0 --wheels wheels-0.26.txt

Copy the folder to the machine. There: python join.py
"""

RUN_EXAMPLES = """\
examples:
  python -m benchmarks gpu run --out out/gpu
  python -m benchmarks gpu run --traces DIR --out out/gpu --json benchmarks/results/vllm-gpu.json
  python -m benchmarks gpu run --calls calls.xz --out out/gpu --limit-s 540
  python -m benchmarks gpu run --out out/tiny --cpu --quick
  python -m benchmarks gpu run --calls calls.xz --out out/trial --trial --load-limit-s 3

Run it again with the same --out for the variants that are missing.
"""

TRACES = "recorded model calls (default: those of examples/agentic_sql)"
VLLM = "0.32.0"  # its kernels, built for torch 2.13, also load with torch 2.11
MOST_PART_MIB = 45


def add_options(benchmarks: Subparsers) -> None:
    """Add the options of ``python -m benchmarks gpu``."""
    gpu = benchmarks.add_parser("gpu", help="vLLM on a GPU, recorded calls forced", description=DESCRIPTION)
    commands = gpu.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_pack(commands)


def _add_run(commands: Subparsers) -> None:
    runs = commands.add_parser("run", help="run all variants", epilog=RUN_EXAMPLES)
    runs.set_defaults(run=run_variants)
    source = runs.add_mutually_exclusive_group()
    source.add_argument("--traces", type=Path, metavar="DIR", help=TRACES)
    source.add_argument("--calls", type=Path, metavar="FILE", help="the same, prepared: calls.xz of a pack")
    runs.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="figures and logs of each variant"
    )
    runs.add_argument(
        "--only",
        type=lambda text: text.split(","),
        metavar="VARIANT,...",
        help="default: all, the most valuable first",
    )
    runs.add_argument("--cpu", action="store_true", help="a tiny model on vLLM's build for CPUs")
    runs.add_argument(
        "--limit-s",
        type=option_types.seconds,
        default=1800,
        metavar="N",
        help="for all variants (%(default)s)",
    )
    runs.add_argument(
        "--load-limit-s",
        type=option_types.seconds,
        default=45,
        metavar="N",
        help="for one load (%(default)s)",
    )
    runs.add_argument(
        "--trial",
        action="store_true",
        help="all variants side by side with two layers: do they work here? Use a folder of its own",
    )
    add_quick(runs, "few and short calls")
    add_outputs(runs, json="also write the JSON line here, such as benchmarks/results/vllm-gpu.json")


def _add_pack(commands: Subparsers) -> None:
    pack = commands.add_parser(
        "pack", help="make the parts for a GPU machine without a package index", epilog=PACK_EXAMPLES
    )
    pack.set_defaults(run=run_pack)
    pack.add_argument("--traces", type=Path, metavar="DIR", help=TRACES)
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
        from benchmarks.gpu.pack import MIB, Target, pack

        announce = announcer()
        calls = _prepared(args, announce)
        target = Target(args.vllm, args.python, args.wheels)
        packed = pack(target, calls, args.out, args.part_mib * MIB, announce)
        announce("done")
        total = sum(packed.part_bytes) / MIB
        print(f"{packed.num_files} files in {len(packed.part_bytes)} parts, {total:.0f} MiB, in {args.out}")
        return 0


def run_variants(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks gpu run``."""
    with needed("bench"):
        return run(lambda announce: _report(args, announce), outputs(args))


def _report(args: argparse.Namespace, announce: Announce) -> Report:
    from benchmarks.gpu import report
    from benchmarks.gpu.run import Plan, run_all, try_all
    from benchmarks.gpu.variants import chosen

    plan = Plan(
        _calls(args, announce),
        args.out,
        chosen(args.only, on_cpu=args.cpu),
        args.cpu,
        args.limit_s,
        args.load_limit_s,
        args.trial,
    )
    found = (try_all if args.trial else run_all)(plan, announce)
    return Report(
        figures={"summary": report.summary(found), "variants": found},
        table=report.table(found),
        origin={"limit_s": args.limit_s},
        notes=report.notes(found),
        is_failure=any(one["error"] for one in found.values()) or not found,
    )


def _calls(args: argparse.Namespace, announce: Announce) -> Path:
    """Return the file of prepared calls; they are prepared once."""
    if args.calls:
        return Path(args.calls)
    path: Path = args.out / ("calls-quick.xz" if args.quick else "calls.xz")
    if not path.exists():
        calls = _prepared(args, announce)
        args.out.mkdir(parents=True, exist_ok=True)
        calls.save(path)
    return path


def _prepared(args: argparse.Namespace, announce: Announce) -> Calls:
    from agentspec.replay.calls import TEKKEN, load_tokenizer
    from benchmarks.gpu.calls import FULL, QUICK, prepare, recorded
    from benchmarks.gpu.example import example

    source = recorded(args.traces) if args.traces else example
    return prepare(source, QUICK if args.quick else FULL, load_tokenizer(TEKKEN), announce)
