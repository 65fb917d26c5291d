"""``agentspec corpus forget``: erases a tenant, a stage or a person."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from agentspec.commands.corpus.place import (
    Place,
    contents,
    known_scopes,
    progress,
    stage_paths,
)
from agentspec.commands.corpus.text import counted, size
from agentspec.corpus.batch import (
    ORIGIN_BYTES,
    Batch,
    ForgetStage,
    ForgetSubject,
    Tombstone,
    is_covered,
)
from agentspec.corpus.snapshots import SnapshotWriter
from agentspec.corpus.store import CorpusStore, Scope, ScopeStats
from agentspec.errors import ConfigError, LostBatchesError
from agentspec.stages import check_tenant
from agentspec.tags import subject_hash

_TOKEN_BYTES = 4
_SETTLE_S = 120.0  # longest wait for the store's files
NOT_SETTLED = 3  # exit status: erased, but the store's files may bring it back


@dataclass(frozen=True, slots=True)
class Covered:
    """What an erasure covers in the store.

    Attributes:
        num_outputs: outputs, equal ones once; None if the whole tenant is erased, since that reads nothing.
        num_tokens: their tokens.
        num_bytes: of log and snapshot, of the whole tenant.
        num_damaged: batches and other values that can't be read. They are removed.
    """

    num_outputs: int | None
    num_tokens: int | None
    num_bytes: int
    num_damaged: int = 0


def run(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus forget``.

    Returns:
        1 if the operator declines, or if batches were removed that could not be read; ``NOT_SETTLED`` if a
        crash of the store may restore erased data.
    """
    place, tombstones = Place(args.corpus), _tombstones(args)
    with place.reading() as store:
        stats = store.stats()
        scopes = _scopes(args, store.scopes(), place.shown)
        covered = _covered(place, store, {scope: stats.get(scope) for scope in scopes}, tombstones)
    what = f"{_amount(covered.values())} of {_named(args)}"
    if not (args.yes or _is_confirmed(f"Erase {what} in {place.shown} and in all engines that share it?")):
        print("nothing was erased", file=sys.stderr)
        return 1
    lost: list[str] = []
    with place.writing() as store:
        for scope in scopes:
            if tombstones:
                lost += _erase(place, store, scope, tombstones)
            else:
                store.erase(scope)
        unsettled = store.settle(_SETTLE_S)
    _report(args, what, covered, lost, unsettled)
    if lost:
        return 1
    return NOT_SETTLED if unsettled else 0


def _tombstones(args: argparse.Namespace) -> list[Tombstone]:
    """Return the erasures of a stage or a person; none for the whole tenant."""
    check_tenant(args.tenant)
    if args.stage is not None and args.subject is not None:
        raise ConfigError("name --stage or --subject, not both: each erases everywhere in the tenant")
    if args.stage is not None:
        return [ForgetStage(path) for path in stage_paths(args.stage)]
    if args.subject is None:
        return []
    if not args.subject:
        raise ConfigError("--subject names a person, as in X-AgentSpec-Subject: it is not empty")
    return [ForgetSubject(subject_hash(args.tenant, args.subject))]


def _scopes(args: argparse.Namespace, known: Sequence[Scope], shown: str) -> list[Scope]:
    extra = [] if args.vocabulary is None else [Scope(args.vocabulary, args.tenant)]
    return known_scopes(args.tenant, {*known, *extra}, shown)


def _covered(
    place: Place,
    store: CorpusStore,
    stats: Mapping[Scope, ScopeStats | None],
    tombstones: Sequence[Tombstone],
) -> dict[Scope, Covered]:
    sizes = {scope: one.num_bytes + one.num_snapshot_bytes if one else 0 for scope, one in stats.items()}
    if not tombstones:
        return {scope: Covered(None, None, size) for scope, size in sizes.items()}
    found = {}
    with progress("reading", len(sizes)) as advance:
        for scope, num_bytes in sizes.items():
            held = contents(place.log(store, scope), scope.tenant)
            outputs = [one for one in held.outputs if any(is_covered(one, by) for by in tombstones)]
            num_tokens = sum(len(one.tokens) for one in outputs)
            found[scope] = Covered(len(outputs), num_tokens, num_bytes, held.num_damaged)
            advance(1)
    return found


def _erase(
    place: Place,
    store: CorpusStore,
    scope: Scope,
    tombstones: Sequence[Tombstone],
) -> list[str]:
    """Erase as an engine would: the log carries it to all engines.

    Returns:
        Sentences about values that were removed because they could not be read.

    Raises:
        CorpusError: repeat it.
    """
    holder = f"command:{os.urandom(8).hex()}"
    writer = SnapshotWriter(place.log(store, scope), holder)
    lost = []
    for tombstone in tombstones:
        try:
            writer.erase(scope.tenant, Batch(os.urandom(ORIGIN_BYTES), 0, (tombstone,)))
        except LostBatchesError as error:
            lost.append(str(error))
    return lost


def _is_confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask at: say --yes if it is to be erased")
    try:
        return Confirm.ask(Text(question), console=Console(stderr=True), default=False)
    except EOFError:
        return False


def _amount(covered: Collection[Covered]) -> str:
    outputs = [one.num_outputs for one in covered if one.num_outputs is not None]
    if not outputs:
        return f"all {size(sum(one.num_bytes for one in covered))}"
    tokens = sum(one.num_tokens or 0 for one in covered)
    return f"{counted(sum(outputs), 'output')} ({counted(tokens, 'token')})"


def _named(args: argparse.Namespace) -> str:
    if args.stage is not None:
        return f"stage {args.stage!r} of tenant {args.tenant!r}"
    return f"tenant {args.tenant!r}" + (f" with data of {args.subject!r}" if args.subject else "")


def _report(
    args: argparse.Namespace,
    what: str,
    covered: Mapping[Scope, Covered],
    lost: Sequence[str],
    unsettled: Sequence[str],
) -> None:
    if args.json:
        erased = [{**scope._asdict(), **asdict(one)} for scope, one in covered.items()]
        found = {"tenant": args.tenant, "stage": args.stage, "erased": erased, "lost": lost}
        print(json.dumps({**found, "is_settled": not unsettled, "unsettled": unsettled}, indent=2))
    else:
        print(f"erased {what}; engines that run forget the same as soon as they read the store")
    num_damaged = sum(one.num_damaged for one in covered.values())
    if num_damaged and not lost:
        print(f"{counted(num_damaged, 'value')} that no engine can use went with it", file=sys.stderr)
    for line in lost:
        print(f"error: {line}", file=sys.stderr)
    for line in unsettled:
        print(f"not for good yet: {line}", file=sys.stderr)
