"""The logs and snapshots of the tenants of one vocabulary, read and written as batches."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.corpus.batch import Batch, decode, encode, is_batch
from agentspec.corpus.store import CorpusStore, Cursor, Marks, Scope, Unread
from agentspec.errors import BatchError, CorpusError, UnknownKeyError

if TYPE_CHECKING:
    from agentspec.corpus.encryption import DataKey, KeyRing

logger = logging.getLogger("agentspec")

MOST_RANGES = 64
_KEY_TRIES = 5


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """An entry of the log.

    Attributes:
        cursor: position behind the entry.
        batch: the decoded batch; None if the entry is unusable.
        is_lost: True if an engine may have written the entry, but it can't be decoded.
    """

    cursor: Cursor
    batch: Batch | None
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """A snapshot's batches, with None for unusable ones, and the log's cursor at which the snapshot ends."""

    cursor: Cursor
    batches: Iterator[Batch | None]


class BatchLog:
    """Encodes, encrypts and checks the batches of a store. Calls of the store may raise CorpusError.

    Args:
        store: keeps the encoded batches.
        vocabulary: fingerprint of the tokenizer.
        keys: the tenants' data keys; None = batches are not encrypted.
    """

    def __init__(self, store: CorpusStore, vocabulary: str, keys: KeyRing | None = None) -> None:
        self.store = store
        self.keys = keys
        self._vocabulary = vocabulary

    def scope(self, tenant: str) -> Scope:
        """Return the scope that holds a tenant's outputs."""
        return Scope(self._vocabulary, tenant)

    def tenants(self) -> list[str]:
        """Return all tenants that have or had outputs in this vocabulary."""
        return [scope.tenant for scope in self.store.scopes() if scope.vocabulary == self._vocabulary]

    def encode(self, tenant: str, batch: Batch) -> bytes:
        """Return a batch as bytes for the store."""
        return encode(batch, self._key(tenant))

    def publish(
        self, tenant: str, batch: Batch, epoch: int | None, *, is_erasure: bool = False
    ) -> int | None:
        """Append a batch to the log, encrypted with the tenant's current data key in the store.

        Args:
            tenant: owner of the log.
            batch: the batch to append.
            epoch: epoch of the tenant in which the batch was cut.
            is_erasure: True if the batch holds a tombstone.

        Returns:
            Number of bytes sent; None if the tenant was erased after ``epoch``, and nothing was appended.

        Raises:
            DataKeyError: the operator's key can't decrypt the tenant's data key.
        """
        scope = self.scope(tenant)
        for _ in range(_KEY_TRIES):
            key = self._key(tenant)
            data = encode(batch, key)
            wrapped = key.wrapped if key else b""
            if self.store.publish(scope, data, epoch, key=wrapped, is_erasure=is_erasure):
                return len(data)
            if self.keys is None or not self.keys.refresh(scope):
                return None
        raise CorpusError(f"other processes keep changing the data key of tenant {tenant!r}: try again later")

    def decode(self, tenant: str, data: bytes | Unread) -> Batch | None:
        """Return the batch that these bytes encode, or None if they are unusable."""
        key = self._key(tenant)
        try:
            return self._decoded(tenant, data, key)
        except BatchError:
            return None

    def _decoded(self, tenant: str, data: bytes | Unread, key: DataKey | None) -> Batch:
        """Return the batch that these bytes encode. Read an unknown key from the store once."""
        try:
            return decode(data, tenant, key)
        except UnknownKeyError:
            if self.keys is None or not self.keys.refresh(self.scope(tenant)):
                raise
            return decode(data, tenant, self._key(tenant))

    def read(self, tenant: str, after: Cursor, most_bytes: int) -> Iterator[LoggedBatch]:
        """Yield the next batches of the log, about ``most_bytes`` in all and at least one if any."""
        for entry in self.store.read(self.scope(tenant), after, most_bytes):
            batch = self.decode(tenant, entry.batch)
            yield LoggedBatch(entry.cursor, batch, batch is None and is_batch(entry.batch))

    def snapshot(self, tenant: str) -> BatchSnapshot | None:
        """Return the snapshot, or None. Iterating over its batches may raise CorpusError."""
        snapshot = self.store.snapshot(self.scope(tenant))
        if snapshot is None:
            return None
        return BatchSnapshot(snapshot.cursor, (self.decode(tenant, part) for part in snapshot.parts))

    def marks(self, tenant: str, known: int = 0) -> Marks:
        """Return the store's numbers of the tenant's last erasures.

        Args:
            tenant: owner of the log.
            known: an epoch that this process has read. If the store has lost it, the tenant is erased again.
        """
        scope = self.scope(tenant)
        marks = self.store.marks(scope)
        if marks.epoch < known:
            logger.warning("the corpus has lost an erasure of tenant %r, which is repeated", tenant)
            self.store.erase(scope, known)
            self.forget_key(tenant)
            marks = self.store.marks(scope)
        return marks

    def end(self, tenant: str) -> Cursor:
        """Return the cursor behind the newest entry."""
        return self.store.end(self.scope(tenant))

    def forget_key(self, tenant: str) -> None:
        """Drop the cached data key of an erased tenant, so that the next call reads it from the store."""
        if self.keys is not None:
            self.keys.forget(self.scope(tenant))

    def _key(self, tenant: str) -> DataKey | None:
        return None if self.keys is None else self.keys.key(self.scope(tenant))


class SeenNumbers:
    """The sequence numbers of one origin that were applied, as sorted ranges.

    Each record is therefore applied once, in any order of arrival. Beyond ``most_ranges`` ranges the lowest
    gap is closed: its numbers count as seen, and they stay in ``num_missing``.
    """

    def __init__(self, most_ranges: int = MOST_RANGES) -> None:
        self._most_ranges = most_ranges
        self._begins: list[int] = []
        self._ends: list[int] = []  # exclusive ends; the ranges neither overlap nor touch
        self._base = 0  # the first number ever added; lower numbers never count as missing
        self._num_closed = 0

    def add(self, first: int, count: int) -> list[range]:
        """Add ``count`` numbers from ``first`` on. Return those that are new, in order."""
        if count <= 0:
            return []
        if not self._begins:
            self._base = first
        end = first + count
        low, high = bisect_left(self._ends, first), bisect_right(self._begins, end)  # ranges that touch it
        fresh, at = [], first
        for begin_seen, end_seen in zip(self._begins[low:high], self._ends[low:high], strict=True):
            if at < begin_seen:
                fresh.append(range(at, begin_seen))
            at = max(at, end_seen)
        if at < end:
            fresh.append(range(at, end))
        self._begins[low:high] = [min([first, *self._begins[low:high]])]
        self._ends[low:high] = [max([end, *self._ends[low:high]])]
        self._close_gaps()
        return fresh

    @property
    def num_missing(self) -> int:
        """Number of records that never arrived, among those after the first one added."""
        gaps = zip(self._ends, self._begins[1:], strict=False)
        return self._num_closed + sum(begin - end for end, begin in gaps if end > self._base)

    @property
    def num_ranges(self) -> int:
        """Count the ranges: at most ``most_ranges``."""
        return len(self._begins)

    def _close_gaps(self) -> None:
        while len(self._begins) > self._most_ranges:
            if self._ends[0] > self._base:
                self._num_closed += self._begins[1] - self._ends[0]
            del self._begins[1], self._ends[0]
