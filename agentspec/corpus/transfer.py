"""Outputs from a store into a file, and from a file into a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agentspec.corpus.batch import ORIGIN_BYTES, Batch, Record
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.contents import ScopeContents
from agentspec.corpus.encryption import DataKey, KeyRing, OperatorKey, no_operator_key, stored_key
from agentspec.corpus.export_file import ExportReader, Totals
from agentspec.corpus.inventory import Inventory, Path, is_below
from agentspec.corpus.output import Output
from agentspec.corpus.store import CorpusStore, Scope
from agentspec.errors import ConfigError, CorpusError, ExportFileError


def outputs_of(
    contents: ScopeContents, inventory: Inventory, stages: Sequence[Path] = ((),)
) -> Iterator[Output]:
    """Yield the distinct outputs of a scope with their uses: the snapshot's, then the rest of the log's.

    Args:
        contents: of the scope.
        inventory: taken of it before. The outputs are removed from it.
        stages: only of these and those below them; all stages are below ().
    """
    for stored in contents:
        for record in stored.batch.records if stored.batch else ():
            if not isinstance(record, Output):
                continue
            if any(is_below(record.stage.path, stage) for stage in stages):
                output = inventory.take(record)
                if output is not None:
                    yield output


# ---- from a file ----


def checked_keys(
    reader: ExportReader, operator: bytes | None, advance: Callable[[int], object]
) -> dict[Scope, DataKey | None]:
    """Read the whole file, and return its scopes with their keys.

    Args:
        reader: of the file.
        operator: the operator's key, if there is one.
        advance: called with the size of each batch that was read.

    Raises:
        ConfigError: the file is encrypted, and ``operator`` is None.
        ExportFileError: the file is damaged, or encrypted for another operator's key.
    """
    keys: dict[Scope, DataKey | None] = {}
    for scope, wrapped in reader.scopes():
        if wrapped is not None and operator is None:
            raise no_operator_key(scope)
        try:
            keys[scope] = OperatorKey(operator).unwrap(scope, wrapped) if operator and wrapped else None
        except CorpusError:
            raise ExportFileError(
                f"the file's outputs of tenant {scope.tenant!r} are encrypted for another operator's key: "
                "configure the one that they were exported with"
            ) from None
    for _ in reader.batches(keys, advance):
        pass
    return keys


def check_vocabularies(scopes: Collection[Scope], known: Collection[Scope], allowed: str | None) -> None:
    """Check that engines of this corpus can read these scopes.

    Args:
        scopes: of a file.
        known: the scopes of the corpus.
        allowed: a vocabulary that may be new to it.

    Raises:
        ConfigError: one has a vocabulary that no scope of the corpus has.
    """
    vocabularies = {scope.vocabulary for scope in known}
    for scope in scopes:
        if vocabularies and scope.vocabulary not in {*vocabularies, allowed}:
            raise ConfigError(
                f"the file has outputs of the vocabulary {scope.vocabulary!r}, but the corpus those of "
                f"{', '.join(map(repr, sorted(vocabularies)))}, whose engines can't read them: name another "
                f"corpus, or --vocabulary {scope.vocabulary} if engines with that tokenizer will share it"
            )


class Importer:
    """Publishes a file's outputs as one more engine would.

    Args:
        store: where to publish.
        operator: the operator's key, if there is one. New scopes are encrypted as the others of the store;
            in an empty one, if there is a key.

    Raises:
        ConfigError: the corpus is encrypted, and ``operator`` is None.
    """

    def __init__(self, store: CorpusStore, operator: bytes | None) -> None:
        self._store = store
        self._operator = operator
        self._origin = os.urandom(ORIGIN_BYTES)
        self._used = store.stats().keys()
        encrypted = [scope for scope in self._used if store.wrapped_key(scope) is not None]
        if encrypted and operator is None:
            raise no_operator_key(encrypted[0])
        self._ring = KeyRing(store, operator) if operator and (encrypted or not self._used) else None
        self.totals = Totals()

    def add(
        self,
        reader: ExportReader,
        keys: Mapping[Scope, DataKey | None],
        minute: int,
        advance: Callable[[int], object],
    ) -> None:
        """Publish all outputs of a file that was checked.

        Ages are counted from the day of the export: an old file is worth as much as on that day.

        Args:
            reader: of the file.
            keys: its scopes, and the keys of those that are encrypted.
            minute: now, in minutes since 1970.
            advance: called with the size of each batch that was read.

        Raises:
            CorpusError: the store can't be used, or a tenant was erased meanwhile. Part may be published.
        """
        targets = {scope: (self._log(scope), self._store.epoch(scope)) for scope in keys}
        self.totals.num_scopes = len(targets)
        later = max(0, minute - reader.minute)
        for scope, batch in reader.batches(keys, advance):
            records = tuple(_aged(record, later, minute) for record in batch.records)
            log, epoch = targets[scope]
            if log.publish(scope.tenant, Batch(self._origin, batch.first, records), epoch) is None:
                raise CorpusError(f"tenant {scope.tenant!r} was erased during the import, which ends here")
            self.totals.num_outputs += len(records)
            self.totals.num_tokens += sum(
                len(record.tokens) for record in records if isinstance(record, Output)
            )

    def _log(self, scope: Scope) -> BatchLog:
        is_encrypted = self._ring is not None
        if scope in self._used:
            is_encrypted = stored_key(self._store, scope, self._operator) is not None
        return BatchLog(self._store, scope.vocabulary, self._ring if is_encrypted else None)


def _aged(record: Record, minutes: int, now_minute: int) -> Record:
    if not isinstance(record, Output):
        return record
    return replace(record, minute=min(record.minute + minutes, now_minute))
