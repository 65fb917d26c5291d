"""``agentspec forest``: shows and changes the trees of a running server through the gateway's routes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from agentspec.commands import gateway_call
from agentspec.commands.gateway_call import Gateway, table
from agentspec.errors import ConfigError
from agentspec.wire import encode_stage

COLUMNS = ("stage", "requests", "output tokens", "tokens per step", "accepted", "MiB")
OLD_S = 5.0  # figures older than this are shown with their age
EXAMPLES = """\
examples:
  agentspec forest stats                               what each stage has gained
  agentspec forest warm calls.jsonl                    learn {"stage": "a/b", "response": "text"}, a line each
  agentspec forest evict my_agent/plan                 forget what this stage has learned
  agentspec forest save --path /var/lib/agentspec/forest --key ADMIN_KEY

stats, evict and warm concern the tenant of the key; save and load concern all tenants and need the key that
the server got by --admin-key, if it has any. A --path needs that key, and lies in the engine's forest
folder. With that key, stats shows all tenants.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec forest``."""
    parser.description = "See and change what a running server has learned."
    parser.epilog = EXAMPLES
    actions = gateway_call.add_actions(
        parser,
        {
            "stats": ("figures by stage", run_stats),
            "evict": ("forget what a stage has learned", run_evict),
            "save": ("write all trees to a file", run_file),
            "load": ("add the trees of a file", run_file),
            "warm": ("learn outputs of a JSONL file", run_warm),
        },
    )
    actions["evict"].add_argument("stage", metavar="STAGE", help="its path, like my_agent/plan")
    actions["warm"].add_argument("file", type=Path, metavar="FILE", help="JSONL: stage and response per line")
    for name in ("save", "load"):
        actions[name].add_argument("--path", metavar="FILE", help="(default: the server's --forest-file)")
    actions["stats"].add_argument("--json", action="store_true", help="as the server sends them")


def run_stats(args: argparse.Namespace) -> None:
    """Run ``agentspec forest stats``."""
    answer = Gateway.of(args).stages()
    if args.json:
        print(json.dumps(answer, indent=2))
        return
    print(_table(answer["stages"]))
    if answer.get("age_s", 0.0) >= OLD_S:
        print(f"\nThese figures are {answer['age_s']:.0f} s old: the engine sends no newer ones at present.")


def run_evict(args: argparse.Namespace) -> None:
    """Run ``agentspec forest evict``."""
    answer = Gateway.of(args).call("DELETE", f"stages/{encode_stage(args.stage)}")
    print(f"forgot {args.stage}: {answer['freed_bytes']} bytes")


def run_file(args: argparse.Namespace) -> None:
    """Run ``agentspec forest save`` and ``load``."""
    answer = Gateway.of(args).call("POST", args.action, json={"path": args.path} if args.path else {})
    if args.action == "save":
        print(f"saved {answer['num_outputs']} outputs to {answer['path']}: {answer['num_bytes']} bytes")
    else:
        print(f"loaded {answer['num_outputs']} outputs from {answer['path']}")


def run_warm(args: argparse.Namespace) -> None:
    """Run ``agentspec forest warm``."""
    try:
        lines = args.file.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {str(args.file)!r}: {error.strerror}") from None
    answer = Gateway.of(args).call("POST", "warm", content=lines)
    print(f"learned {answer['num_outputs']} outputs: {answer['num_tokens']} tokens")


def _table(stages: list[dict[str, Any]]) -> str:
    """Return a table of stages. The stages of several tenants, for an operator, show their tenant."""
    rows = [_row(stage) for stage in stages]
    tenants = [stage["tenant"] for stage in stages]
    if len(set(tenants)) < 2:
        return table(COLUMNS, rows)
    return table(
        ("tenant: stage", *COLUMNS[1:]),
        [(f"{one}: {row[0]}", *row[1:]) for one, row in zip(tenants, rows, strict=True)],
    )


def _row(stage: dict[str, Any]) -> tuple[str, ...]:
    steps, drafted, accepted = (
        stage[name] for name in ("num_steps", "num_draft_tokens", "num_accepted_tokens")
    )
    return (
        stage["stage"],
        str(stage["num_requests"]),
        str(stage["num_output_tokens"]),
        f"{1 + accepted / steps:.2f}" if steps else "-",
        f"{accepted / drafted:.0%}" if drafted else "-",
        f"{stage['tree_bytes'] / (1 << 20):.1f}",
    )
