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
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, (text, run) in {
        "stats": ("figures by stage", run_stats),
        "evict": ("forget what a stage has learned", run_evict),
        "save": ("write all trees to a file", run_save),
        "load": ("add the trees of a file", run_load),
        "warm": ("learn outputs of a JSONL file", run_warm),
    }.items():
        action = actions.add_parser(name, help=text)
        action.set_defaults(run=run)
        gateway_call.add_options(action)
        if name == "evict":
            action.add_argument("stage", metavar="STAGE", help="its path, like my_agent/plan")
        if name == "warm":
            action.add_argument("file", type=Path, metavar="FILE", help="JSONL: stage and response per line")
        if name in ("save", "load"):
            action.add_argument("--path", metavar="FILE", help="(default: the server's --forest-file)")
        if name == "stats":
            action.add_argument("--json", action="store_true", help="as the server sends them")


def run_stats(args: argparse.Namespace) -> int:
    """Run ``agentspec forest stats``."""
    answer = Gateway.of(args).stages()
    if args.json:
        print(json.dumps(answer, indent=2))
        return 0
    print(_table(answer["stages"]))
    if answer.get("age_s", 0.0) >= OLD_S:
        print(f"\nThese figures are {answer['age_s']:.0f} s old: the engine sends no newer ones at present.")
    return 0


def run_evict(args: argparse.Namespace) -> int:
    """Run ``agentspec forest evict``."""
    answer = Gateway.of(args).call("DELETE", f"stages/{encode_stage(args.stage)}")
    print(f"forgot {args.stage}: {answer['freed_bytes']} bytes")
    return 0


def run_save(args: argparse.Namespace) -> int:
    """Run ``agentspec forest save``."""
    answer = Gateway.of(args).call("POST", "save", json={} if args.path is None else {"path": args.path})
    print(f"saved {answer['num_outputs']} outputs to {answer['path']}: {answer['num_bytes']} bytes")
    return 0


def run_load(args: argparse.Namespace) -> int:
    """Run ``agentspec forest load``."""
    answer = Gateway.of(args).call("POST", "load", json={} if args.path is None else {"path": args.path})
    print(f"loaded {answer['num_outputs']} outputs from {answer['path']}")
    return 0


def run_warm(args: argparse.Namespace) -> int:
    """Run ``agentspec forest warm``."""
    try:
        lines = args.file.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {str(args.file)!r}: {error.strerror}") from None
    answer = Gateway.of(args).call("POST", "warm", content=lines)
    print(f"learned {answer['num_outputs']} outputs: {answer['num_tokens']} tokens")
    return 0


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
