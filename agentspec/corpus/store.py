"""The seam between engines and what keeps their outputs: SQLite on one host, Redis for a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Cursor = str  # a position in the log of a scope, opaque outside its store
START: Cursor = ""  # before the first entry


class Scope(NamedTuple):
    """Whose outputs: they are never read across scopes.

    Attributes:
        vocabulary: fingerprint of the tokenizer; token ids mean nothing elsewhere.
        tenant: the forest's tenant, adapter included.
    """

    vocabulary: str
    tenant: str


class Entry(NamedTuple):
    """An entry of the log: the cursor behind it, and an encoded batch (``batch``)."""

    cursor: Cursor
    batch: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All outputs of a scope up to a cursor.

    Attributes:
        cursor: the log continues here.
        parts: encoded batches, most useful first. Reading one may raise CorpusError.
    """

    cursor: Cursor
    parts: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """What the store holds of a scope."""

    num_entries: int
    num_bytes: int
    num_snapshot_bytes: int
    oldest_minute: int


class CorpusStore(Protocol):
    """A log of batches per scope, with snapshots. Safe to call from several threads.

    Every call is bounded in time. All raise CorpusError if the store is away, slow, full or damaged.
    """

    def publish(self, scope: Scope, batch: bytes) -> None:
        """Append a batch to the log. The oldest entries beyond the retention are dropped."""

    def tenants(self, vocabulary: str) -> list[str]:
        """Return the tenants that have outputs of this vocabulary."""

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first: at least one if there is any.

        If the cursor's entry has been dropped, the log continues with the oldest one.
        """

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""

    def epoch(self, scope: Scope) -> int:
        """Return how often the scope was erased: trees from before must be dropped."""

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number, greater than all before, if the holder may write the snapshot now."""

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Replace the scope's snapshot at once. False: a holder with a greater fence was there, or an erasure."""

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, if there is one."""

    def erase(self, scope: Scope) -> None:
        """Remove all entries and snapshots of the scope, and begin a new epoch."""

    def rewrite(self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]]) -> None:
        """Remove entries, and append what remains of them. Used to erase a stage or a person."""

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes."""

    def close(self) -> None:
        """Release connections and files."""
