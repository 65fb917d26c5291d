"""Options of ``python -m benchmarks gateway``; benchmark modules are imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentspec.commands import option_types
from agentspec.errors import ConfigError
from agentspec.extras import needed
from benchmarks.harness.options import Subparsers, add_outputs, add_parts, add_quick, chosen, outputs

PARTS = ("latency", "throughput", "soak")
LITELLM = Path(".venv-litellm/bin/litellm")
KIB = 1024

DESCRIPTION = """\
Measure the gateway in front of an engine that answers at once, against LiteLLM's proxy and against no
gateway: what it adds to an answer's time, what it costs, whether memory stays. Prints a table, then one line
of JSON.
"""

EXAMPLES = """\
examples:
  python -m benchmarks gateway --json out/gateway.json          all parts, some forty minutes
  python -m benchmarks gateway --quick                          less of everything, some minutes
  python -m benchmarks gateway --only latency,throughput
  python -m benchmarks gateway --only soak --minutes 30 --json out/gateway.json

parts; with --json, those that are not measured now stay as they are in the file:
  latency     added to answers and to first bytes at 100 requests a second, 64 streams open beside
  throughput  requests per second of processor time, and processor time per chunk of a stream
  soak        streams, answers, errors, clients that leave, long bodies; memory and open files

LiteLLM: `make bench-gateway` installs it into .venv-litellm. Where it is missing, our own figures are still
measured and its are null. Nothing else should run on the machine: "others_cores" in the JSON says what did.
"""


def add_options(benchmarks: Subparsers) -> None:
    """Add the options of ``python -m benchmarks gateway``."""
    gateway = benchmarks.add_parser(
        "gateway",
        help="the gateway, against LiteLLM's proxy and none",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    gateway.set_defaults(run=run_gateway)
    add_parts(gateway, PARTS)
    add_quick(gateway, "less of everything: some minutes")
    gateway.add_argument(
        "--litellm", type=Path, metavar="FILE", help=f"LiteLLM's command (default: {LITELLM}, if it is there)"
    )
    gateway.add_argument(
        "--body-kib", type=option_types.count, metavar="N", help="size of a request's body (6)"
    )
    gateway.add_argument(
        "--rounds", type=option_types.count, metavar="N", help="medians count (5; --quick: 2)"
    )
    gateway.add_argument(
        "--minutes", type=option_types.seconds, metavar="N", help="of the soak (30; --quick: 0.5)"
    )
    gateway.add_argument(
        "--patience",
        type=option_types.seconds,
        default=0.0,
        metavar="MINUTES",
        help="wait so long in all while others work on this machine; repeat what they disturb (0)",
    )
    add_outputs(
        gateway,
        json="write the JSON here; parts that are not measured now stay in the file",
        plot="the added latency by percentile",
    )


def run_gateway(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks gateway``."""
    with needed("bench"):
        from benchmarks.gateway.run import run
        from benchmarks.gateway.sizes import FULL, QUICK

        sizes = chosen(
            QUICK,
            FULL,
            is_quick=args.quick,
            body_bytes=args.body_kib and args.body_kib * KIB,
            num_rounds=args.rounds,
            soak_minutes=args.minutes,
        )
        return run(args.only or PARTS, sizes, _litellm(args.litellm), outputs(args), args.patience * 60)


def _litellm(given: Path | None) -> Path | None:
    if given and not given.exists():
        raise ConfigError(f"there is no {str(given)!r}: `make bench-gateway` installs LiteLLM")
    return given or (LITELLM if LITELLM.exists() else None)
