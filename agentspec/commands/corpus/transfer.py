"""``agentspec corpus export`` and ``import``."""

from __future__ import annotations

import argparse
import json
import sys
import time

from agentspec.commands.corpus import names
from agentspec.commands.corpus.place import Place, num_bytes, progress, retention_of
from agentspec.commands.corpus.text import counted, size
from agentspec.corpus.encryption import OperatorKey, new_key
from agentspec.corpus.export_file import Totals, reading, writing
from agentspec.corpus.inventory import Inventory, Path
from agentspec.corpus.store import Scope, ScopeStats
from agentspec.corpus.transfer import Importer, check_vocabularies, checked_keys, outputs_of
from agentspec.errors import ConfigError, CorpusError


def run_export(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus export``."""
    place = Place(args.corpus, args.corpus_snapshots)
    stages: list[Path] = [()] if args.stage is None else names.stage_paths(args.stage)
    num_unreadable = 0
    with place.reading() as store, writing(args.file, _minute()) as file:
        stats = store.stats()
        scopes = names.known(args.tenant, list(stats), place.shown)
        with progress("exporting", 2 * num_bytes(stats[scope] for scope in scopes)) as advance:
            for scope in scopes:
                contents = place.contents(store, scope, advance)
                inventory = Inventory.of(contents)
                num_unreadable += inventory.num_unreadable
                is_encrypted = store.wrapped_key(scope) is not None
                file.add(
                    scope,
                    outputs_of(contents, inventory, stages),
                    new_key(scope) if is_encrypted else None,
                    OperatorKey(place.operator) if place.operator else None,
                )
        totals = file.totals
        if not totals.num_outputs:
            raise ConfigError(f"{place.shown!r} holds no such outputs: nothing was written")
    if num_unreadable:
        print(
            f"{counted(num_unreadable, 'batch', 'batches')} can't be read and were left out: "
            "`agentspec corpus verify` names them",
            file=sys.stderr,
        )
    return _report(args, "exported", totals)


def run_import(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus import``."""
    place = Place(args.corpus, args.corpus_snapshots)
    with reading(args.file) as file:
        with progress("checking", file.num_bytes) as advance:
            keys = checked_keys(file, place.operator, advance)
        known: list[Scope] = []
        stats: list[ScopeStats] = []
        if place.is_there:
            with place.reading() as store:
                known, stats = store.scopes(), list(store.stats().values())
        check_vocabularies(keys, known, args.vocabulary)
        with place.writing(retention_of(stats)) as store, progress("importing", file.num_bytes) as advance:
            importer = Importer(store, place.operator)
            try:
                importer.add(file, keys, _minute(), advance)
            except CorpusError as error:
                raise CorpusError(
                    f"{error}\n{counted(importer.totals.num_outputs, 'output')} of the file were imported. "
                    "Import it again: equal outputs count as one"
                ) from error
    return _report(args, "imported", importer.totals)


def _report(args: argparse.Namespace, done: str, totals: Totals) -> int:
    num_file_bytes = args.file.stat().st_size
    if args.json:
        figures = {"num_outputs": totals.num_outputs, "num_tokens": totals.num_tokens}
        print(json.dumps({"file": str(args.file), "num_bytes": num_file_bytes, **figures}))
    else:
        print(
            f"{done} {counted(totals.num_outputs, 'output')}, {counted(totals.num_tokens, 'token')}, of "
            f"{counted(totals.num_scopes, 'tenant')}: {args.file}, {size(num_file_bytes)}"
        )
    return 0


def _minute() -> int:
    return int(time.time() // 60)
