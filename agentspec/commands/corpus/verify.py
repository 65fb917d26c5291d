"""``agentspec corpus verify``: reads everything and reports damage."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from agentspec.commands.corpus import names
from agentspec.commands.corpus.place import Advance, Place, num_bytes, progress
from agentspec.commands.corpus.text import counted, owner
from agentspec.corpus.store import CorpusStore, Scope
from agentspec.corpus.verification import Verification, verify
from agentspec.errors import ConfigError, CorpusError


def run(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus verify``. Returns 1 if something is damaged."""
    place = Place(args.corpus, args.corpus_snapshots)
    with place.reading() as store:
        damage = [f"the store: {line}" for line in store.check_integrity()]
        stats = store.stats()
        scopes = names.known(args.tenant, list(stats), place.shown)
        with progress("reading", num_bytes(stats[scope] for scope in scopes)) as advance:
            found = {scope: _verified(place, store, scope, advance) for scope in scopes}
        if store.num_foreign:
            damage.append(f"the store: {counted(store.num_foreign, 'value')} that no engine wrote")
    for scope, one in found.items():
        damage += [f"{_named(scope, scopes)}: {line}" for line in one.damage]
    if args.json:
        by_scope = [{**scope._asdict(), **asdict(one)} for scope, one in found.items()]
        print(json.dumps({"corpus": place.shown, "damage": damage, "scopes": by_scope}, indent=2))
    else:
        print(*damage, *_summary(list(found.values()), len(damage)), sep="\n")
    return int(bool(damage))


def _verified(place: Place, store: CorpusStore, scope: Scope, advance: Advance) -> Verification:
    try:
        contents = place.contents(store, scope, advance)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return Verification(damage=[str(error)])
    except CorpusError as error:  # the key of one tenant
        return Verification(damage=[str(error)])
    return verify(contents)


def _named(scope: Scope, scopes: list[Scope]) -> str:
    """Name a scope: by its vocabulary too, if its tenant has several."""
    is_only = sum(scope.tenant == other.tenant for other in scopes) == 1
    return owner(scope.tenant) if is_only else f"{owner(scope.tenant)}, vocabulary {scope.vocabulary}"


def _summary(found: list[Verification], num_damaged: int) -> list[str]:
    num_batches, num_records, num_missing = (
        sum(getattr(one, name) for one in found) for name in ("num_batches", "num_records", "num_missing")
    )
    lines = [
        f"read {counted(num_batches, 'batch', 'batches')} with {counted(num_records, 'record')}: "
        + (f"{counted(num_damaged, 'place')} damaged" if num_damaged else "no damage")
    ]
    if num_missing:
        lines.append(
            f"{counted(num_missing, 'sequence number')} missing: engines ended before they had sent all, or "
            "entries were lost"
        )
    return lines
