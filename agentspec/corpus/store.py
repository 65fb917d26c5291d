"""The seam between engines and what keeps their outputs: SQLite on one host, Redis for a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from agentspec.corpus.settings import check_location, is_redis
from agentspec.errors import ConfigError

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


@dataclass(frozen=True, slots=True)
class Unread:
    """A stored value that was not read: it is too long, or no engine wrote it.

    Attributes:
        reason: a sentence for operators, like ``it has 62914560 bytes, not at most 4194304``.
        num_bytes: its size, as far as it is known.
    """

    reason: str
    num_bytes: int = 0

    def __len__(self) -> int:
        return self.num_bytes


class Entry(NamedTuple):
    """An entry of the log: the cursor behind it, and an encoded batch (``batch``)."""

    cursor: Cursor
    batch: bytes | Unread


class Marks(NamedTuple):
    """What a store knows of a scope's erasures. Both numbers only rise, unless the store loses content.

    Attributes:
        epoch: of the last erasure of the whole scope, or 0.
        erasure: of the last erasure of a stage or a person, or 0.
    """

    epoch: int = 0
    erasure: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All outputs of a scope up to a cursor.

    Attributes:
        cursor: the log continues here.
        parts: encoded batches, most useful first. Reading one may raise CorpusError.
    """

    cursor: Cursor
    parts: Iterator[bytes | Unread]


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a scope a store keeps. The oldest is dropped first.

    Attributes:
        most_bytes: of the log.
        most_age_s: of entries and snapshots.

    Raises:
        ConfigError: one of them is not positive.
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
    """What the store holds of a scope. Minutes are since 1970; 0 = there is none.

    Attributes:
        num_entries: of the log.
        num_bytes: of the log.
        num_snapshot_bytes: of the snapshot, and of the one before if it is kept.
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

    Every call is bounded in time. All raise CorpusError if the store is away, slow, full or damaged. What a
    store holds may come from anybody who can write to it. So a value of another type, length or form than
    engines write is taken for none, counted once, and replaced by the next call that writes it.

    Attributes:
        window_s: time over which a publisher gathers outputs for one entry.
        num_foreign: values that no engine wrote, without the entries of logs and parts of snapshots, which
            the reader counts.
    """

    window_s: float

    @property
    def num_foreign(self) -> int:
        """Count the values met that no engine wrote."""

    def publish(
        self,
        scope: Scope,
        batch: bytes,
        epoch: int | None = None,
        *,
        key: bytes = b"",
        is_erasure: bool = False,
    ) -> bool:
        """Append a batch to the log. The oldest entries beyond the retention are dropped.

        Args:
            scope: owner of the log.
            batch: encoded.
            epoch: that the batch belongs to; None = any.
            key: the wrapped key that encrypted it. A store that has none takes it over.
            is_erasure: raise the number of the last erasure (:class:`Marks`) at the same time.

        Returns:
            False if ``epoch`` is not the scope's, so that it was erased since, or if the scope's wrapped key
            does not begin with ``key``. Nothing is appended then.
        """

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first: at least one if there is any.

        If the cursor's entry has been dropped, the log continues with the oldest one.
        """

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""

    def marks(self, scope: Scope) -> Marks:
        """Return the numbers of the scope's last erasures.

        An epoch is the time in seconds since 1970, or one more than the number before. So no two erasures
        have the same, even if the store has lost its content between them. Trees from before must be emptied.
        """

    def mark(self, scope: Scope, erasure: int) -> None:
        """Raise the number of the last erasure of a stage or a person to at least this one."""

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number, greater than all before, if the holder may write the snapshot now."""

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Replace the scope's snapshot at once. The replaced one is kept for those that read it now.

        Returns:
            False if a holder with a greater fence was there, or an erasure.
        """

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, if there is one."""

    def erase(self, scope: Scope, epoch: int = 0) -> None:
        """Remove all entries and snapshots of the scope and its wrapped key, and begin a new epoch.

        Args:
            scope: what to erase, whatever it holds.
            epoch: repeats an erasure of this number, which the store has lost. Nothing happens unless its own
                number is lower. 0 = a new erasure.
        """

    def rewrite(
        self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]], fence: int | None = None
    ) -> None:
        """Write the log anew, with other entries in the place of some.

        Used to erase a stage or a person. Entries that no engine can have written are left out.

        Args:
            scope: owner of the log.
            entries: cursors, rising, with what takes the place of their entries; None = nothing does. Those
                that have been dropped meanwhile are passed over.
            fence: of the lease; None = anybody may.

        Raises:
            CorpusError: another holder of the lease was there meanwhile, or an erasure. Repeat it.
        """

    def drop_previous(self, scope: Scope) -> None:
        """Remove the snapshot before the present one, and the last bytes of what ``rewrite`` replaced."""

    def settle(self, timeout_s: float) -> list[str]:
        """Make what was erased leave the files of the store for good, as far as that is permitted.

        Returns:
            What could not be done or confirmed, in sentences. Nothing: a crash brings nothing back.
        """

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If it has none, it becomes the candidate, if there is one."""

    def replace_key(self, scope: Scope, before: bytes, wrapped: bytes) -> bool:
        """Replace the scope's wrapped key. Return False if it is not ``before``."""

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""

    def scopes(self) -> list[Scope]:
        """Return the scopes that have ever had outputs, as far as the store remembers them."""

    def close(self) -> None:
        """Release connections and files."""


def open_store(location: str, retention: Retention | None = None, *, only_reads: bool = False) -> CorpusStore:
    """Return the store at a place.

    Args:
        location: a folder, for the processes of one host; ``redis://`` or ``rediss://`` (TLS) for a fleet.
        retention: how much to keep of each scope.
        only_reads: a folder without a corpus is an error, and a damaged file stays where it is.

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
