"""The logs and snapshots of one vocabulary's tenants, as batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.corpus.batch import Batch, decode, encode
from agentspec.corpus.store import CorpusStore, Cursor, Scope
from agentspec.errors import BatchError

if TYPE_CHECKING:
    from agentspec.corpus.encryption import DataKey, KeyRing


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch and the cursor behind it. The batch is None if it can't be used."""

    cursor: Cursor
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """A snapshot's batches, with None for those that can't be used. The log continues at the cursor."""

    cursor: Cursor
    batches: Iterator[Batch | None]


class BatchLog:
    """Encodes, encrypts and checks the batches of a store. Every call that uses it may raise CorpusError.

    Args:
        store: keeps the bytes.
        vocabulary: fingerprint of the tokenizer.
        keys: the tenants' data keys; None = nothing is encrypted.
    """

    def __init__(self, store: CorpusStore, vocabulary: str, keys: KeyRing | None = None) -> None:
        self.store = store
        self._vocabulary = vocabulary
        self._keys = keys

    def scope(self, tenant: str) -> Scope:
        """Return the scope of a tenant's outputs."""
        return Scope(self._vocabulary, tenant)

    def tenants(self) -> list[str]:
        """Return the tenants that have outputs."""
        return self.store.tenants(self._vocabulary)

    def encode(self, tenant: str, batch: Batch) -> bytes:
        """Return a batch as bytes for the store."""
        return encode(batch, self._key(tenant))

    def decode(self, tenant: str, data: bytes) -> Batch | None:
        """Return the batch of these bytes, or None if they can't be used."""
        key = self._key(tenant)
        try:
            return decode(data, tenant, key)
        except BatchError:
            return None

    def read(self, tenant: str, after: Cursor, most_bytes: int) -> Iterator[LoggedBatch]:
        """Yield the next batches of the log: at least one if there is any, about ``most_bytes``."""
        for entry in self.store.read(self.scope(tenant), after, most_bytes):
            yield LoggedBatch(entry.cursor, self.decode(tenant, entry.batch))

    def snapshot(self, tenant: str) -> BatchSnapshot | None:
        """Return the snapshot, if there is one. To read a part may raise CorpusError."""
        snapshot = self.store.snapshot(self.scope(tenant))
        if snapshot is None:
            return None
        return BatchSnapshot(snapshot.cursor, (self.decode(tenant, part) for part in snapshot.parts))

    def epoch(self, tenant: str) -> int:
        """Return the number of the tenant's last erasure, or 0."""
        return self.store.epoch(self.scope(tenant))

    def end(self, tenant: str) -> Cursor:
        """Return the cursor behind the newest entry."""
        return self.store.end(self.scope(tenant))

    def forget_key(self, tenant: str) -> None:
        """Look the tenant's key up again: it was erased."""
        if self._keys is not None:
            self._keys.forget(self.scope(tenant))

    def _key(self, tenant: str) -> DataKey | None:
        return None if self._keys is None else self._keys.key(self.scope(tenant))
