"""The seam between engines and what keeps their outputs: SQLite on one host, Redis for a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from agentspec.errors import ConfigError

Cursor = str  # a position in the log of a scope, opaque outside its store
START: Cursor = ""  # before the first entry
_OBJECT_STORES = ("s3", "gs", "az")  # URL schemes


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
        retention: of the engine that published last; None if none has.
    """

    num_entries: int
    num_bytes: int
    num_snapshot_bytes: int
    oldest_minute: int
    snapshot_minute: int = 0
    retention: Retention | None = None


class CorpusStore(Protocol):
    """A log of batches per scope, with snapshots. Safe to call from several threads.

    Every call is bounded in time. All raise CorpusError if the store is away, slow, full or damaged.

    Attributes:
        window_s: time over which a publisher gathers outputs for one entry.
    """

    window_s: float

    def publish(self, scope: Scope, batch: bytes, epoch: int | None = None) -> bool:
        """Append a batch to the log. The oldest entries beyond the retention are dropped.

        Returns:
            False if ``epoch`` is not the scope's: it was erased since, and nothing is appended.
        """

    def tenants(self, vocabulary: str) -> list[str]:
        """Return the tenants that have outputs of this vocabulary. Some may have none any more."""

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first: at least one if there is any.

        If the cursor's entry has been dropped, the log continues with the oldest one.
        """

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""

    def epoch(self, scope: Scope) -> int:
        """Return the number of the scope's last erasure, or 0: trees from before must be dropped.

        It is the time in seconds since 1970, or one more than the number before. So no two erasures have the
        same, even if the store has lost its content between them.
        """

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number, greater than all before, if the holder may write the snapshot now."""

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Replace the scope's snapshot at once. The replaced one is kept for those that read it now.

        Returns:
            False if a holder with a greater fence was there, or an erasure.
        """

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, if there is one."""

    def erase(self, scope: Scope) -> None:
        """Remove all entries and snapshots of the scope and its wrapped key, and begin a new epoch."""

    def rewrite(self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]]) -> None:
        """Remove entries, and append what remains of them. Used to erase a stage or a person.

        Entries that have been dropped meanwhile are left out. The replaced snapshot is removed, too: put the
        new one before.
        """

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If it has none, it becomes the candidate, if there is one."""

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""

    def scopes(self) -> list[Scope]:
        """Return the scopes that have ever had outputs, as far as the store remembers them."""

    def check_integrity(self) -> list[str]:
        """Return the errors in the store's own files; none where a server keeps them."""

    def close(self) -> None:
        """Release connections and files."""


def open_store(
    location: str,
    retention: Retention | None = None,
    *,
    snapshots: str | None = None,
    only_reads: bool = False,
) -> CorpusStore:
    """Return the store at a place.

    Args:
        location: a folder, for the processes of one host; ``redis://`` or ``rediss://`` (TLS) for a fleet.
        retention: how much to keep of each scope.
        snapshots: URL of an object store for the snapshots, as for :func:`check_snapshots`; None = they are
            beside the log.
        only_reads: a folder without a corpus is an error, and a damaged file stays where it is.

    Raises:
        ConfigError: the location is neither, the URL is none, or a package is missing.
        CorpusError: the folder can't be used.
    """
    from agentspec.corpus.snapshot_store import SnapshotStore

    retention = retention or Retention()
    check_location(location)
    folder = None
    if snapshots is not None:
        from agentspec.corpus.object_folder import ObjectFolder

        folder = ObjectFolder(snapshots, only_reads=only_reads)
    return SnapshotStore(_opened(location, retention, only_reads), folder, retention.most_age_s)


def _opened(location: str, retention: Retention, only_reads: bool) -> CorpusStore:
    if _is_redis(location):
        from agentspec.corpus.redis_store import RedisStore

        return RedisStore(location, retention)
    from agentspec.corpus.sqlite_store import SqliteStore

    return SqliteStore(Path(location), retention, only_reads=only_reads)


def check_location(location: str) -> None:
    """Raise ConfigError if the location is neither a folder nor a Redis URL."""
    if not location or ("://" in location and not _is_redis(location)):
        raise ConfigError(
            f"{without_password(location)!r} is no place for a corpus: name a folder, redis://HOST:PORT/DB, "
            "or rediss://HOST:PORT/DB for TLS"
        )


def check_snapshots(url: str) -> None:
    """Raise ConfigError unless the URL names a folder of an object store, without credentials or options."""
    scheme, mark, place = url.partition("://")
    bucket, _, folder = place.partition("/")
    is_named = bool(folder) and not bucket if scheme == "file" else scheme in _OBJECT_STORES and bool(bucket)
    if not (mark and is_named) or set(url) & set("@?#") or ":" in bucket:
        raise ConfigError(
            f"{without_password(url)!r} is no place for snapshots: name s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER; credentials and "
            "options are in the environment"
        )


def is_remote(place: str) -> bool:
    """Return True if a place of a corpus, or of its snapshots, is not on this machine's disk."""
    return "://" in place and not place.startswith("file:")


def _is_redis(location: str) -> bool:
    return location.partition("://")[0] in ("redis", "rediss") and "://" in location


def without_password(url: str) -> str:
    """Return the URL without password and options, to be shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("://")[0] + "://..."
    user, at, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=user.partition(":")[0] + at + place, query="", fragment="").geturl()
