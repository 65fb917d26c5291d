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
    actions = gateway_call.add_actions(
        parser,
        {
            "list": ("clusters of prompts, and the stage of each", run_list),
            "name": ("send a cluster's requests to a stage of this name", run_name),
            "pin": ("keep a cluster however seldom it is used", run_pin),
            "unpin": ("let a cluster make room", run_pin),
            "merge": ("put a cluster into another", run_merge),
            "split": ("take a cluster apart", run_split),
        },
    )
    for name in actions.keys() - {"list"}:
        actions[name].add_argument("cluster", metavar="ID", help="as `list` shows it")
    actions["name"].add_argument(
        "stage", nargs="?", metavar="STAGE", help="its path (default: its own again)"
    )
    actions["merge"].add_argument("--into", required=True, metavar="ID", help="the cluster that stays")
    actions["split"].add_argument(
        "fingerprints", nargs="*", metavar="FINGERPRINT", help="keep them together (default: each alone)"
    )
    actions["list"].add_argument("--text", action="store_true", help="and what the prompts say")
    actions["list"].add_argument("--json", action="store_true", help="as the server sends them")


def run_list(args: argparse.Namespace) -> None:
    """Run ``agentspec stages list``."""
    answer = Gateway.of(args).call("GET", "clusters")
    if args.json:
        print(json.dumps(answer, indent=2))
        return
    lines = table(COLUMNS, [*map(_row, answer["clusters"])]).splitlines()
    print(lines[0])
    for line, cluster in zip(lines[1:], answer["clusters"], strict=True):
        print(line)
        if args.text and cluster["text"]:
            print(f"    {cluster['text']}")


def run_name(args: argparse.Namespace) -> None:
    """Run ``agentspec stages name``."""
    answer = Gateway.of(args).call("PATCH", _path(args.cluster), json={"name": args.stage})
    print(f"requests of {answer['id']} are sent to {answer['stage']}")


def run_pin(args: argparse.Namespace) -> None:
    """Run ``agentspec stages pin`` and ``unpin``."""
    answer = Gateway.of(args).call("PATCH", _path(args.cluster), json={"pinned": args.action == "pin"})
    print(f"{args.action}ned {answer['stage']}")


def run_merge(args: argparse.Namespace) -> None:
    """Run ``agentspec stages merge``."""
    answer = Gateway.of(args).call("POST", f"{_path(args.cluster)}/merge", json={"into": args.into})
    print(f"requests of {args.cluster} are sent to {answer['stage']}")


def run_split(args: argparse.Namespace) -> None:
    """Run ``agentspec stages split``."""
    asked = {"fingerprints": args.fingerprints} if args.fingerprints else {}
    for cluster in Gateway.of(args).call("POST", f"{_path(args.cluster)}/split", json=asked)["clusters"]:
        print(f"{cluster['id']}  {cluster['stage']}")


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
