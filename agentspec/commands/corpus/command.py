"""``agentspec corpus``: its options. What they ask for is imported when it runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

PLACE_VARIABLE = "AGENTSPEC_ENGINE__CORPUS"  # the variables of `agentspec serve`
EXAMPLES = """\
examples:
  agentspec corpus stats --corpus /var/lib/agentspec/corpus
  agentspec corpus stats --corpus redis://redis:6379/0 --tenant acme --json
  agentspec corpus export acme --corpus /var/lib/agentspec/corpus --tenant acme
  agentspec corpus import acme --corpus redis://redis:6379/0
  agentspec corpus forget --corpus redis://redis:6379/0 --tenant acme --subject jane@example.org

PLACE is that of `agentspec serve --corpus`: a folder, redis://USER:PASSWORD@HOST:PORT/DB, or rediss:// for
TLS. Keep a URL with a password in $AGENTSPEC_ENGINE__CORPUS. Encrypted outputs need the operator's key in
$AGENTSPEC_CORPUS_KEY; to forget a whole tenant needs none. No engine needs to run. The exit status is 1 if
the command failed, and 3 if `forget` erased all, but a crash of the store may bring it back.
"""
ACTIONS = {
    "stats": (
        "sizes, ages and damage by tenant and stage",
        """\
Show what a corpus holds of each tenant and stage, and how many of its batches are damaged: engines ignore
these. Reads all of it and changes nothing.
""",
    ),
    "export": (
        "copy outputs to a new folder",
        """\
Copy outputs, each once, to a new folder, which is a corpus of its own. Changes nothing in the corpus. Outputs
that are encrypted in the corpus are encrypted in the folder, for the same operator's key. An erasure does not
reach the folder: delete it when it is no longer needed.
""",
    ),
    "import": (
        "publish the outputs of an export to the engines of a corpus",
        """\
Publish the outputs of an exported folder. All of it is checked first: if it is damaged, or of another
tokenizer, nothing is published.
""",
    ),
    "forget": (
        "erase a tenant, a stage or a person",
        """\
Erase outputs in the store, and in the trees of all engines that share it as soon as they read it. Without
--stage and --subject all of the tenant is erased, and its data key. A Redis server is then asked to write its
dump and its append-only file anew: until it has, they hold what was erased.
""",
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec corpus``."""
    parser.description = "See, move, check and erase the outputs that engines share."
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, (text, description) in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=description)
        action.set_defaults(run=run, action=name)
        if name in ("export", "import"):
            action.add_argument("folder", type=Path, metavar="FOLDER", help="of exported outputs")
        _add_selection(action, name)
        action.add_argument(
            "--corpus",
            default=os.environ.get(PLACE_VARIABLE),
            metavar="PLACE",
            help=f"a folder, redis://... or rediss://...; also ${PLACE_VARIABLE}",
        )
        action.add_argument("--json", action="store_true", help="print one JSON object")
        if name == "forget":
            action.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_selection(action: argparse.ArgumentParser, name: str) -> None:
    if name == "import":
        action.add_argument(
            "--vocabulary",
            metavar="V",
            help="accept outputs of this tokenizer's fingerprint, of which the corpus has none yet",
        )
        return
    text = "all of it, with its adapters" if name == "forget" else "only its outputs (default: all tenants')"
    action.add_argument("--tenant", required=name == "forget", metavar="TENANT", help=text)
    if name in ("export", "forget"):
        action.add_argument("--stage", metavar="STAGE", help="only this stage and those below it")
    if name == "forget":
        action.add_argument(
            "--subject", metavar="PERSON", help="only this person, named as in X-AgentSpec-Subject"
        )
        action.add_argument(
            "--vocabulary",
            metavar="V",
            help="erase in the vocabulary of this fingerprint, which a flushed store no longer knows",
        )


def run(args: argparse.Namespace) -> int:
    """Run an action of ``agentspec corpus``."""
    from agentspec.commands.corpus import forget, stats, transfer

    actions = {
        "stats": stats.run,
        "export": transfer.run_export,
        "import": transfer.run_import,
        "forget": forget.run,
    }
    return actions[args.action](args)
