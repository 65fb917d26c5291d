"""``agentspec stages``: shows and changes the stages that a running server discovered, through its routes."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from agentspec.commands import gateway_call
from agentspec.commands.gateway_call import Gateway, table

COLUMNS = ("stage", "id", "requests", "prompts", "last seen", "kept")
EXAMPLES = """\
examples:
  agentspec stages list                        the clusters of prompts, those used most first
  agentspec stages list --text                 and what their prompts say, masked
  agentspec stages name 4fb645d33c15 my_agent/plan
  agentspec stages name 4fb645d33c15           back to its own name
  agentspec stages pin 4fb645d33c15            it makes room for no other
  agentspec stages merge b00449f8e752 --into 4fb645d33c15
  agentspec stages split 4fb645d33c15          each of its prompts is a stage of its own
  agentspec stages split 4fb645d33c15 FINGERPRINT ...

All concerns the tenant of the key; `list` with the operator's shows all tenants. Requests that
name their stage are not concerned.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec stages``."""
    parser.description = "See and change what stages a running server discovered."
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, (text, run) in {
        "list": ("clusters of prompts, and the stage of each", run_list),
        "name": ("send a cluster's requests to a stage of this name", run_name),
        "pin": ("keep a cluster however seldom it is used", run_pin),
        "unpin": ("let a cluster make room", run_pin),
        "merge": ("put a cluster into another", run_merge),
        "split": ("take a cluster apart", run_split),
    }.items():
        action = actions.add_parser(name, help=text)
        action.set_defaults(run=run, action=name)
        gateway_call.add_options(action)
        if name != "list":
            action.add_argument("cluster", metavar="ID", help="as `list` shows it")
        if name == "name":
            action.add_argument("stage", nargs="?", metavar="STAGE", help="its path (default: its own again)")
        if name == "merge":
            action.add_argument("--into", required=True, metavar="ID", help="the cluster that stays")
        if name == "split":
            action.add_argument(
                "fingerprints",
                nargs="*",
                metavar="FINGERPRINT",
                help="keep them together (default: each becomes a cluster)",
            )
        if name == "list":
            action.add_argument("--text", action="store_true", help="and what the prompts say")
            action.add_argument("--json", action="store_true", help="as the server sends them")


def run_list(args: argparse.Namespace) -> int:
    """Run ``agentspec stages list``."""
    answer = Gateway.of(args).call("GET", "clusters")
    if args.json:
        print(json.dumps(answer, indent=2))
        return 0
    lines = table(COLUMNS, [*map(_row, answer["clusters"])]).splitlines()
    print(lines[0])
    for line, cluster in zip(lines[1:], answer["clusters"], strict=True):
        print(line)
        if args.text and cluster["text"]:
            print(f"    {cluster['text']}")
    return 0


def run_name(args: argparse.Namespace) -> int:
    """Run ``agentspec stages name``."""
    answer = Gateway.of(args).call("PATCH", _path(args.cluster), json={"name": args.stage})
    print(f"requests of {answer['id']} are sent to {answer['stage']}")
    return 0


def run_pin(args: argparse.Namespace) -> int:
    """Run ``agentspec stages pin`` and ``unpin``."""
    answer = Gateway.of(args).call("PATCH", _path(args.cluster), json={"pinned": args.action == "pin"})
    print(f"{args.action}ned {answer['stage']}")
    return 0


def run_merge(args: argparse.Namespace) -> int:
    """Run ``agentspec stages merge``."""
    answer = Gateway.of(args).call("POST", f"{_path(args.cluster)}/merge", json={"into": args.into})
    print(f"requests of {args.cluster} are sent to {answer['stage']}")
    return 0


def run_split(args: argparse.Namespace) -> int:
    """Run ``agentspec stages split``."""
    asked = {"fingerprints": args.fingerprints} if args.fingerprints else {}
    for cluster in Gateway.of(args).call("POST", f"{_path(args.cluster)}/split", json=asked)["clusters"]:
        print(f"{cluster['id']}  {cluster['stage']}")
    return 0


def _path(cluster: str) -> str:
    return f"clusters/{quote(cluster, safe='')}"


def _row(cluster: dict[str, Any]) -> tuple[str, ...]:
    marks = [word for word in ("named", "pinned") if cluster[f"is_{word}"]]
    prompts = len(cluster["fingerprints"])
    return (
        f"{cluster['tenant']}: {cluster['stage']}" if "tenant" in cluster else cluster["stage"],
        cluster["id"],
        str(cluster["num_requests"]),
        f"{prompts}+" if cluster["num_templates"] else str(prompts),
        cluster["last_seen"].removesuffix("+00:00"),
        ", ".join(marks) or "-",
    )
