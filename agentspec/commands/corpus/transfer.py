"""``agentspec corpus export`` and ``import``: copies outputs into a folder of their own, and back."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.commands.corpus.place import (
    Place,
    StagePath,
    contents,
    known_scopes,
    progress,
    stage_paths,
)
from agentspec.commands.corpus.text import counted, size
from agentspec.corpus.batch import ORIGIN_BYTES, Batch, Output, split
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.encryption import KeyRing, no_operator_key
from agentspec.corpus.store import CorpusStore, Retention, Scope
from agentspec.errors import ConfigError, CorpusError

_EXPORTED = Retention(most_bytes=1 << 62, most_age_s=100 * 365 * 86400.0)  # an export drops nothing


@dataclass(slots=True)
class Totals:
    """Counts of copied records. ``num_damaged`` counts the batches that can't be read and were left out."""

    num_scopes: int = 0
    num_outputs: int = 0
    num_tokens: int = 0
    num_damaged: int = 0

    def copy(self, outputs: Iterable[Output], target: BatchLog, tenant: str) -> None:
        """Publish outputs as one more engine would.

        Raises:
            CorpusError: the store can't be used, or the tenant was erased meanwhile. Part may be published.
        """
        origin, first = os.urandom(ORIGIN_BYTES), 0
        epoch = target.marks(tenant).epoch
        for records in split(outputs):
            if target.publish(tenant, Batch(origin, first, records), epoch) is None:
                raise CorpusError(f"tenant {tenant!r} was erased meanwhile, which ends the copy: repeat it")
            first += len(records)
            self.num_outputs += len(records)
            self.num_tokens += sum(len(one.tokens) for one in records if isinstance(one, Output))
        self.num_scopes += first > 0


def run_export(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus export``."""
    place, folder, totals = Place(args.corpus), args.folder, Totals()
    stages = [()] if args.stage is None else stage_paths(args.stage)
    if folder.exists():
        raise ConfigError(f"{str(folder)!r} is there already and stays as it is: name another folder")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        with place.reading() as store, Place(str(part)).writing(_EXPORTED) as target:
            scopes = known_scopes(args.tenant, store.stats(), place.shown)
            with progress("exporting", len(scopes)) as advance:
                for scope in scopes:
                    _export(place, store, scope, target, stages, totals)
                    advance(1)
        if not totals.num_outputs:
            raise ConfigError(f"{place.shown!r} holds no such outputs: nothing was written")
        part.rename(folder)
    except OSError as error:
        raise CorpusError(f"can't export to {str(folder)!r}: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return _report(args, "exported", totals)


def _export(
    place: Place,
    store: CorpusStore,
    scope: Scope,
    target: CorpusStore,
    stages: Sequence[StagePath],
    totals: Totals,
) -> None:
    log = place.log(store, scope)
    held = contents(log, scope.tenant)
    keys = KeyRing(target, place.operator) if place.operator and log.keys is not None else None
    chosen = (one for one in held.outputs if any(one.stage.path[: len(path)] == path for path in stages))
    totals.num_damaged += held.num_damaged
    totals.copy(chosen, BatchLog(target, scope.vocabulary, keys), scope.tenant)


def run_import(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus import``."""
    place, source, totals = Place(args.corpus), Place(str(args.folder)), Totals()
    with source.reading() as exported:
        found = {}
        for scope in sorted(exported.stats()):
            found[scope] = contents(source.log(exported, scope), scope.tenant)
        if not found or any(held.num_damaged for held in found.values()):
            raise CorpusError(f"{source.shown!r} is no whole export: nothing was imported; export again")
        stats = {}
        if place.is_there:
            with place.reading() as store:
                stats = store.stats()
        _check_vocabularies(found, stats, args.vocabulary)
        with place.writing() as store:
            is_encrypted = _is_encrypted(place, store, stats)
            for scope, held in found.items():
                keys = KeyRing(store, place.operator) if place.operator and is_encrypted else None
                totals.copy(held.outputs, BatchLog(store, scope.vocabulary, keys), scope.tenant)
    return _report(args, "imported", totals)


def _check_vocabularies(scopes: Iterable[Scope], known: Iterable[Scope], allowed: str | None) -> None:
    """Raise ConfigError if a scope has a vocabulary that engines of the corpus can't read."""
    vocabularies = {scope.vocabulary for scope in known}
    for scope in scopes:
        if vocabularies and scope.vocabulary not in {*vocabularies, allowed}:
            raise ConfigError(
                f"the export has outputs of the vocabulary {scope.vocabulary!r}, but the corpus those of "
                f"{', '.join(map(repr, sorted(vocabularies)))}, whose engines can't read them: name another "
                f"corpus, or --vocabulary {scope.vocabulary} if engines with that tokenizer will share it"
            )


def _is_encrypted(place: Place, store: CorpusStore, used: Iterable[Scope]) -> bool:
    """Return True if outputs are to be encrypted: as the others of the store; in an empty one with a key."""
    used = list(used)
    encrypted = [scope for scope in used if store.wrapped_key(scope) is not None]
    if encrypted and place.operator is None:
        raise no_operator_key(encrypted[0])
    return bool(encrypted or not used)


def _report(args: argparse.Namespace, done: str, totals: Totals) -> int:
    num_bytes = sum(path.stat().st_size for path in Path(args.folder).rglob("*") if path.is_file())
    figures = {"num_outputs": totals.num_outputs, "num_tokens": totals.num_tokens}
    if args.json:
        shown = {"folder": str(args.folder), "num_bytes": num_bytes, **figures}
        print(json.dumps({**shown, "num_damaged": totals.num_damaged}))
        return 0
    print(
        f"{done} {counted(totals.num_outputs, 'output')}, {counted(totals.num_tokens, 'token')}, of "
        f"{counted(totals.num_scopes, 'tenant')}: {args.folder}, {size(num_bytes)}"
    )
    if totals.num_damaged:
        print(f"{counted(totals.num_damaged, 'batch', 'batches')} can't be read and were left out")
    return 0
