"""The command line of the experiment."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from agentspec.commands import option_types
from agentspec.distribution import DOCUMENTS
from agentspec.extras import needed
from benchmarks.harness.options import Subparsers
from lab.engine import BUNDLED

DESCRIPTION = """\
Measure the gain of drafting for a model of any size on recorded agent work, without its weights. The
embedded engine takes every step of the recorded answers: a real forward pass over the last token and the
draft. The record stands for the model's output. Each call runs without drafts, with prompt look-up (n-grams)
and with the forest, in turn, one call at a time. Prints a table, then one line of JSON.
"""

EXAMPLES = (
    """\
examples:
  python -m lab engine --trace calls.jsonl                      the bundled model's shape, some minutes
  python -m lab engine --trace calls.jsonl --shape qwen-0.5b --calls 10
  python -m lab engine --trace calls.jsonl --shape ./Qwen3-0.6B/config.json
  python -m lab engine --trace calls.jsonl --model ./Qwen3-0.6B --device cuda --json out/engine.json
"""
    f"""
FILE is what `agentspec replay` reads, *.jsonl or *.jsonl.gz: {DOCUMENTS}/replay-engine.md
"""
    """The forest learns the
answers of the file's first calls (--history); those behind them are measured. A long prompt is cut at its
front, a long answer at its end. Prompts are read once for all methods and are not in the times.

shapes, with random weights (any config.json of a Llama, Mistral, Qwen or MiMo will do):
  bundled       the bundled model itself, 3.7 M parameters
  smollm-135m   like SmolLM2-135M
  qwen-0.5b     like Qwen2.5-0.5B
  llama-1b      like Llama-3.2-1B; 8 GB of memory in float32
Text is told in Tekken's tokens, or in those of the tokenizer in the folder of --model or of config.json; the
three shapes have a vocabulary to match.
"""
)


def add_options(experiments: Subparsers) -> None:
    """Add ``python -m lab engine``."""
    engine = experiments.add_parser(
        "engine",
        help="time per output token of any model shape, on recorded calls",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    engine.set_defaults(run=run_engine)
    engine.add_argument("--trace", type=Path, required=True, metavar="FILE", help="recorded model calls")
    chosen = engine.add_mutually_exclusive_group()
    chosen.add_argument(
        "--model", type=Path, metavar="DIR", help="a checkpoint, or its folder without weights"
    )
    chosen.add_argument(
        "--shape", default=BUNDLED, metavar="NAME", help="one of those below, or a config.json (%(default)s)"
    )
    _add_size_options(engine)
    engine.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    engine.add_argument("--dtype", metavar="TYPE", help="float32, bfloat16, float16 (default: by device)")
    engine.add_argument(
        "--threads", type=option_types.count, metavar="N", help="of the CPU (default: torch's; bundled: 1)"
    )
    engine.add_argument("--quick", action="store_true", help="fewer and shorter calls")
    engine.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    engine.add_argument("--plot", type=Path, metavar="FILE", help="also draw time per token by stage")


def _add_size_options(engine: argparse.ArgumentParser) -> None:
    for name, meaning in {
        "calls": "that are measured (40; --quick: 6)",
        "history": "calls before them that the forest has learned (200; --quick: 50)",
        "prompt-tokens": "of a prompt, at most (1024; --quick: 256)",
        "output-tokens": "of an answer, at most (128; --quick: 48)",
        "rounds": "all calls, from nothing; times are added up (2; --quick: 1)",
    }.items():
        kind = _count_or_none if name == "history" else option_types.count
        engine.add_argument(f"--{name}", type=kind, metavar="N", help=meaning)

    engine.add_argument(
        "--minutes",
        type=option_types.seconds,
        metavar="N",
        help="no further call is begun after so long (10; --quick: 3)",
    )


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else option_types.count(text)


def run_engine(args: argparse.Namespace) -> int:
    """Run ``python -m lab engine``."""
    with needed("bench", "engine"):
        from agentspec.reporting.report import Outputs, run
        from lab.engine.run import make_report
        from lab.engine.shapes import Chosen
        from lab.engine.sizes import FULL, QUICK

        names = ("calls", "history", "prompt_tokens", "output_tokens", "rounds", "minutes")
        given = {name: value for name in names if (value := getattr(args, name)) is not None}
        sizes = replace(QUICK if args.quick else FULL, **given)
        chosen = Chosen(args.model, args.shape, args.device, args.dtype, args.threads)
        outputs = Outputs(json=args.json, plot=args.plot)
        return run(lambda announce: make_report(args.trace, chosen, sizes, announce), outputs)
