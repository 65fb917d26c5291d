"""The interface between engines and the store of their outputs: SQLite on one host, Redis for a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from agentspec.corpus.settings import check_location, is_redis
from agentspec.errors import ConfigError

Cursor = str  # a position in a scope's log; only its store can interpret it
START: Cursor = ""  # before the first entry


class Scope(NamedTuple):
    """A tenant and a vocabulary. An engine never reads outputs of another scope.

    Attributes:
        vocabulary: fingerprint of the tokenizer, since token ids of different tokenizers do not compare.
        tenant: the forest's tenant, adapter included.
    """

    vocabulary: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A stored value that was not read, because it is too long or because no engine wrote it.

    Attributes:
        reason: a sentence for operators, like ``it has 62914560 bytes, not at most 4194304``.
        num_bytes: size of the value, if known.
    """

    reason: str
    num_bytes: int = 0

    def __len__(self) -> int:
        return self.num_bytes


class Entry(NamedTuple):
    """An entry of the log: the cursor behind the entry, and an encoded batch (``batch``)."""

    cursor: Cursor
    batch: bytes | Unread


class Marks(NamedTuple):
    """The numbers of a scope's last erasures. Both only rise, unless the store loses content.

    Attributes:
        epoch: number of the last erasure of the whole scope, or 0.
        erasure: number of the last erasure of a stage or a person, or 0.
    """

    epoch: int = 0
    erasure: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All outputs of a scope up to a cursor.

    Attributes:
        cursor: position in the log behind the newest entry in the snapshot.
        parts: encoded batches, most useful first. Reading one may raise CorpusError.
    """

    cursor: Cursor
    parts: Iterator[bytes | Unread]


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on what a store keeps of a scope. The oldest content is dropped first.

    Attributes:
        most_bytes: limit of the log's bytes.
        most_age_s: limit of the age of entries and snapshots.

    Raises:
        ConfigError: a value is not positive.
    """

    most_bytes: int = 256 << 20
    most_age_s: float = 7 * 86400.0

    def __post_init__(self) -> None:
        if self.most_bytes <= 0 or self.most_age_s <= 0:
            raise ConfigError(
                f"a corpus keeps a positive number of bytes and seconds, not {self.most_bytes!r} and "
                f"{self.most_age_s!r}"
            )


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """Sizes of a scope in the store. Minutes are since 1970; 0 = there is no such entry or snapshot.

    Attributes:
        num_entries: number of entries in the log.
        num_bytes: bytes of the log.
        num_snapshot_bytes: bytes of the snapshot, and of the previous one if the store still keeps it.
        oldest_minute: when the oldest entry was published.
        snapshot_minute: when the snapshot was written.
    """

    num_entries: int
    num_bytes: int
    num_snapshot_bytes: int
    oldest_minute: int
    snapshot_minute: int = 0


class CorpusStore(Protocol):
    """A log of batches per scope, with snapshots. Safe to call from several threads.

    Every call is bounded in time. All raise CorpusError if the store is unreachable, slow, full or damaged.
    Any program with access to the store may have written to it. A value of a type, length or form that
    engines never write therefore counts as missing. It is counted once, and the next call that writes there
    replaces it.

    Attributes:
        window_s: seconds over which a publisher gathers outputs for one entry.
        num_foreign: number of values that no engine wrote, except entries of logs and parts of snapshots,
            which the reader counts.
    """

    window_s: float

    @property
    def num_foreign(self) -> int:
        """Number of values read so far that no engine wrote."""

    def publish(
        self,
        scope: Scope,
        batch: bytes,
        epoch: int | None = None,
        *,
        key: bytes = b"",
        is_erasure: bool = False,
    ) -> bool:
        """Append a batch to the log. Drop the oldest entries beyond the retention.

        Args:
            scope: owner of the log.
            batch: an encoded batch.
            epoch: epoch that the batch belongs to; None = any.
            key: the wrapped key that encrypted the batch. A store without a key for the scope stores this
                one.
            is_erasure: True = also raise the number of the last erasure (:class:`Marks`).

        Returns:
            False, and nothing is appended, if the scope's epoch is not ``epoch`` because it was erased since,
            or if the scope's wrapped key does not begin with ``key``.
        """

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first: at least one if there are any.

        If the cursor's entry has been dropped, the log continues with the oldest one.
        """

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""

    def marks(self, scope: Scope) -> Marks:
        """Return the numbers of the scope's last erasures.

        An epoch is the time of the erasure in seconds since 1970, or the previous epoch plus one. So no two
        erasures have the same number, even if the store loses its content in between. An engine that reads a
        new epoch empties its trees.
        """

    def mark(self, scope: Scope, erasure: int) -> None:
        """Raise the number of the last erasure of a stage or a person to at least this one."""

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Take the lease for a holder. Return a fencing number above all before; None if another has it."""

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Replace the scope's snapshot atomically. The previous one is kept for processes that still read it.

        Returns:
            False if the scope was erased, or another holder has got a greater fence.
        """

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, or None."""

    def erase(self, scope: Scope, epoch: int = 0) -> None:
        """Remove all entries and snapshots of the scope and its wrapped key, and begin a new epoch.

        Args:
            scope: the scope to erase; it may be empty.
            epoch: the number of an erasure that the store has lost, to be repeated. Nothing happens unless
                the scope's own number is lower. 0 = a new erasure.
        """

    def rewrite(
        self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]], fence: int | None = None
    ) -> None:
        """Write the log again, with other entries in the place of some.

        Engines use this to erase a stage or a person. Entries that no engine can have written are left out.

        Args:
            scope: owner of the log.
            entries: rising cursors of entries, each with a new batch, or None to remove the entry. Entries
                that were dropped meanwhile are ignored.
            fence: fencing number of the caller's lease; None = no lease is needed.

        Raises:
            CorpusError: the scope was erased, or another process has taken the lease. Call again.
        """

    def drop_previous(self, scope: Scope) -> None:
        """Remove the previous snapshot, and the remaining bytes of entries that ``rewrite`` replaced."""

    def settle(self, timeout_s: float) -> list[str]:
        """Remove erased data from the store's files, as far as the store permits.

        Returns:
            One sentence for each step that failed or could not be confirmed. Empty: no crash restores erased
            data.
        """

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If the scope has none, store the candidate and return it."""

    def replace_key(self, scope: Scope, before: bytes, wrapped: bytes) -> bool:
        """Replace the scope's wrapped key. Return False if the present key is not ``before``."""

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""

    def scopes(self) -> list[Scope]:
        """Return the scopes that have or had outputs, as far as the store remembers them."""

    def close(self) -> None:
        """Release connections and files."""


def open_store(location: str, retention: Retention | None = None, *, only_reads: bool = False) -> CorpusStore:
    """Return the store at a location.

    Args:
        location: a folder, for the processes of one host; ``redis://`` or ``rediss://`` (TLS) for a fleet.
        retention: limits on what the store keeps of each scope.
        only_reads: never write. A folder without a corpus is an error, and a damaged file stays unchanged.

    Raises:
        ConfigError: the location is neither, or a package is missing.
        CorpusError: the folder can't be used.
    """
    check_location(location)
    if is_redis(location):
        from agentspec.corpus.redis_store import RedisStore

        return RedisStore(location, retention)
    from agentspec.corpus.sqlite_store import SqliteStore

    return SqliteStore(Path(location), retention, only_reads=only_reads)
