"""The corpus of one host: a folder with one SQLite file, and one small file per wrapped key."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from agentspec.corpus.batch import check_size
from agentspec.corpus.sqlite_file import SqliteFile
from agentspec.corpus.store import START, Cursor, Entry, Retention, Scope, ScopeStats, Snapshot
from agentspec.errors import ConfigError, CorpusError

FILE = "corpus.sqlite"
KEYS = "keys"  # a folder: backups may leave it out
_VERSION = 1
_APPLICATION = 0x41675370
_WATCH_S = 0.02
_NUM_SNAPSHOTS = 2  # the newest, and the one before for those that read it now
_TABLES = """
create table scopes (
    id integer primary key, vocabulary text not null, tenant text not null, epoch int not null default 0,
    num_entries int not null default 0, num_bytes int not null default 0,
    fence int not null default 0, holder text not null default '', lease_end_s real not null default 0,
    most_bytes int, most_age_s real,
    unique (vocabulary, tenant));
create table entries (
    id integer primary key autoincrement, scope int not null, minute int not null, num_bytes int not null,
    batch blob not null);
create index entries_by_scope on entries (scope);
create trigger entry_added after insert on entries begin
    update scopes set num_entries = num_entries + 1, num_bytes = num_bytes + new.num_bytes
    where id = new.scope; end;
create trigger entry_dropped after delete on entries begin
    update scopes set num_entries = num_entries - 1, num_bytes = num_bytes - old.num_bytes
    where id = old.scope; end;
create table snapshots (
    id integer primary key autoincrement, scope int not null, minute int not null, cursor text not null,
    num_parts int not null default 0, num_bytes int not null default 0, is_complete int not null default 0);
create table parts (id integer primary key, snapshot int not null, number int not null, batch blob not null,
    unique (snapshot, number));
create trigger snapshot_dropped after delete on snapshots begin
    delete from parts where snapshot = old.id; end;
insert into sqlite_sequence select column1, cast((julianday() - 2440587.5) * 86400e6 as int)
    from (values ('entries'), ('snapshots'));
"""  # ids begin at the present microsecond: cursors of a file that was damaged lie before those of the next
_SCOPE = "(select id from scopes where vocabulary = ? and tenant = ?)"
_HAS_OUTPUTS = """(num_entries > 0 or exists (
    select 1 from snapshots where snapshots.scope = scopes.id and is_complete))"""


class SqliteStore:
    """A :class:`~agentspec.corpus.store.CorpusStore` for the processes of one host.

    Writers wait for each other, at most two seconds. ``wait`` looks for changes every 20 ms.

    Args:
        folder: made if it is missing; on a local disk, not on NFS.
        retention: how much to keep of each scope.
        clock: seconds since 1970.
        only_reads: a folder without a corpus is an error, and a damaged file stays where it is.

    Raises:
        ConfigError: the place is no folder, or has no corpus to be read.
        CorpusError: the file there can't be used.
    """

    window_s = 0.05  # a host has few publishers; twice as long costs a fleet 1 to 3 % of the tokens per step

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
        *,
        only_reads: bool = False,
    ) -> None:
        if not only_reads:
            _make_folders(folder)
        elif not (folder / FILE).exists():
            raise ConfigError(f"there is no corpus in {str(folder)!r}: it has no file {FILE}")
        self._keys = folder / KEYS
        self._retention = retention or Retention()
        self._clock = clock
        self._closed = threading.Event()
        self._file = SqliteFile(folder / FILE, _TABLES, _VERSION, _APPLICATION, only_reads=only_reads)

    # ---- the log ----

    def publish(self, scope: Scope, batch: bytes, epoch: int | None = None) -> bool:
        """Append a batch to the log, and drop what is beyond the retention."""
        check_size(batch)
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            if epoch is not None and _epoch(file, scope) != epoch:
                return False
            self._append(file, number, batch)
            self._note_retention(file, number)
            self._drop_beyond_budget(file, number)
            self._drop_old(file)
        return True

    def tenants(self, vocabulary: str) -> list[str]:
        """Return the tenants that have outputs of this vocabulary."""
        with self._file.transaction(writes=False) as file:
            rows = file.execute(
                f"select tenant from scopes where vocabulary = ? and {_HAS_OUTPUTS} order by tenant",
                (vocabulary,),
            )
            return [tenant for (tenant,) in rows]

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first."""
        entries: list[Entry] = []
        num_bytes = 0
        with self._file.transaction(writes=False) as file:
            query = f"select id, batch from entries where scope = {_SCOPE} and id > ? order by id"
            with contextlib.closing(file.execute(query, (*scope, _id(after)))) as rows:
                for entry, batch in rows:
                    num_bytes += len(batch)
                    if entries and num_bytes > most_bytes:
                        break
                    entries.append(Entry(str(entry), batch))
        return entries

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""
        deadline = time.monotonic() + timeout_s
        seen = None
        try:
            while True:
                version = self._file.data_version()
                if version != seen and any(self._has_more(*one) for one in cursors.items()):
                    return
                seen = version
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._closed.wait(min(_WATCH_S, left_s)):
                    return
        except CorpusError:
            if not self._closed.is_set():
                raise

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""
        with self._file.transaction(writes=False) as file:
            (newest,) = file.execute(f"select max(id) from entries where scope = {_SCOPE}", scope).fetchone()
            return START if newest is None else str(newest)

    def rewrite(self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]]) -> None:
        """Replace entries by what remains of them, in one transaction. Holds all that remains in memory."""
        replaced = [(_id(cursor), batch) for cursor, batch in entries]
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            for entry, batch in replaced:
                dropped = file.execute("delete from entries where scope = ? and id = ?", (number, entry))
                if batch is not None and dropped.rowcount:
                    check_size(batch)
                    self._append(file, number, batch)
            _drop_snapshots(file, number, num_kept=1)
        self._file.forget_deleted()

    def _append(self, file: sqlite3.Connection, number: int, batch: bytes) -> None:
        row = (number, self._minute(), len(batch), batch)
        file.execute("insert into entries (scope, minute, num_bytes, batch) values (?, ?, ?, ?)", row)

    def _has_more(self, scope: Scope, after: Cursor) -> bool:
        with self._file.transaction(writes=False) as file:
            query = f"select 1 from entries where scope = {_SCOPE} and id > ? limit 1"
            return file.execute(query, (*scope, _id(after))).fetchone() is not None

    # ---- retention ----

    def _note_retention(self, file: sqlite3.Connection, number: int) -> None:
        limits = (self._retention.most_bytes, self._retention.most_age_s)
        file.execute(
            "update scopes set most_bytes = ?1, most_age_s = ?2"
            " where id = ?3 and (most_bytes, most_age_s) is not (?1, ?2)",
            (*limits, number),
        )

    def _drop_beyond_budget(self, file: sqlite3.Connection, number: int) -> None:
        """Drop the scope's oldest entries, never its newest."""
        num_entries, num_bytes = file.execute(
            "select num_entries, num_bytes from scopes where id = ?", (number,)
        ).fetchone()
        excess = num_bytes - self._retention.most_bytes
        last = 0
        query = "select id, num_bytes from entries where scope = ? order by id limit ?"
        with contextlib.closing(file.execute(query, (number, num_entries - 1))) as rows:
            while excess > 0 and (row := rows.fetchone()):
                last = row[0]
                excess -= row[1]
        file.execute("delete from entries where scope = ? and id <= ?", (number, last))

    def _drop_old(self, file: sqlite3.Connection) -> None:
        """Drop entries and snapshots of all scopes that are older than the retention."""
        oldest = self._minute() - int(self._retention.most_age_s // 60)
        first = "(select id from entries where minute >= ? order by id limit 1)"
        file.execute(f"delete from entries where id < ifnull({first}, 1 << 62)", (oldest,))
        file.execute("delete from snapshots where minute < ?", (oldest,))

    def _minute(self) -> int:
        return int(self._clock() // 60)

    # ---- epochs and snapshots ----

    def epoch(self, scope: Scope) -> int:
        """Return how often the scope was erased."""
        with self._file.transaction(writes=False) as file:
            return _epoch(file, scope)

    def erase(self, scope: Scope) -> None:
        """Remove all of the scope, its wrapped key first, and begin a new epoch."""
        try:
            self._key_file(scope).unlink(missing_ok=True)
        except OSError as error:
            raise _key_error(self._key_file(scope), error) from error
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            file.execute("delete from entries where scope = ?", (number,))
            file.execute("delete from snapshots where scope = ?", (number,))
            file.execute(
                "update scopes set epoch = max(epoch + 1, cast(strftime('%s') as integer)),"
                " fence = fence + 1, holder = '', lease_end_s = 0"
                " where id = ?",
                (number,),
            )
        self._file.forget_deleted()

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number if the holder may write the snapshot now."""
        now_s = self._clock()
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            self._drop_old(file)
            fence, other, end_s = file.execute(
                "select fence + 1, holder, lease_end_s from scopes where id = ?", (number,)
            ).fetchone()
            if other != holder and end_s > now_s:
                return None
            file.execute(
                "update scopes set fence = ?, holder = ?, lease_end_s = ? where id = ?",
                (fence, holder, now_s + ttl_s, number),
            )
            file.execute("delete from snapshots where scope = ? and not is_complete", (number,))
        return int(fence)

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Write the parts one by one, then replace the scope's snapshot in one transaction."""
        snapshot = self._begin_snapshot(scope, fence, cursor)
        if snapshot is None:
            return False
        try:
            return self._add_parts(snapshot, parts) and self._complete(snapshot)
        except BaseException:
            with contextlib.suppress(CorpusError), self._file.transaction(writes=True) as file:
                file.execute("delete from snapshots where id = ?", (snapshot,))
            raise

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, if there is one."""
        with self._file.transaction(writes=False) as file:
            row = file.execute(
                f"select id, cursor, num_parts from snapshots where scope = {_SCOPE} and is_complete"
                " order by id desc limit 1",
                scope,
            ).fetchone()
        return Snapshot(row[1], self._parts(row[0], row[2])) if row else None

    def _begin_snapshot(self, scope: Scope, fence: int, cursor: Cursor) -> int | None:
        """Return a new snapshot's id. A newer lease and an erasure remove its row, and so end its writing."""
        with self._file.transaction(writes=True) as file:
            begun = file.execute(
                "insert into snapshots (scope, minute, cursor)"
                f" select id, ?, ? from scopes where id = {_SCOPE} and fence = ?",
                (self._minute(), cursor, *scope, fence),
            )
            return begun.lastrowid if begun.rowcount else None

    def _add_parts(self, snapshot: int, parts: Iterable[bytes]) -> bool:
        for number, part in enumerate(parts):
            check_size(part)
            with self._file.transaction(writes=True) as file:
                counted = file.execute(
                    "update snapshots set num_parts = num_parts + 1, num_bytes = num_bytes + ? where id = ?",
                    (len(part), snapshot),
                )
                if not counted.rowcount:
                    return False
                row = (snapshot, number, part)
                file.execute("insert into parts (snapshot, number, batch) values (?, ?, ?)", row)
        return True

    def _complete(self, snapshot: int) -> bool:
        with self._file.transaction(writes=True) as file:
            row = file.execute("select scope from snapshots where id = ?", (snapshot,)).fetchone()
            if row is None:
                return False
            file.execute("update snapshots set is_complete = 1 where id = ?", (snapshot,))
            _drop_snapshots(file, row[0], _NUM_SNAPSHOTS)
        return True

    def _parts(self, snapshot: int, num_parts: int) -> Iterator[bytes]:
        for number in range(num_parts):
            with self._file.transaction(writes=False) as file:
                row = file.execute(
                    "select batch from parts where snapshot = ? and number = ?", (snapshot, number)
                ).fetchone()
            if row is None:
                raise CorpusError("this snapshot was replaced while it was read: read the new one")
            yield row[0]

    # ---- keys, sizes ----

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If it has none, it becomes the candidate, if there is one."""
        path = self._key_file(scope)
        own = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            if not path.exists():
                if candidate is None:
                    return None
                own.unlink(missing_ok=True)
                with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(candidate)
                    file.flush()
                    os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(own, path)  # whole, and never over another one
                own.unlink()
            return path.read_bytes()
        except OSError as error:
            raise _key_error(path, error) from error

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""
        with self._file.transaction(writes=False) as file:
            rows = file.execute(
                "select vocabulary, tenant, num_entries, num_bytes,"
                " (select ifnull(sum(num_bytes), 0) from snapshots where scope = scopes.id),"
                " (select minute from entries where scope = scopes.id order by entries.id limit 1),"
                " (select minute from snapshots where scope = scopes.id and is_complete"
                " order by snapshots.id desc limit 1),"
                f" most_bytes, most_age_s from scopes where {_HAS_OUTPUTS}"
            )
            return {Scope(vocabulary, tenant): _stats(*sizes) for vocabulary, tenant, *sizes in rows}

    def scopes(self) -> list[Scope]:
        """Return the scopes that have ever had outputs, or a lease."""
        with self._file.transaction(writes=False) as file:
            rows = file.execute("select vocabulary, tenant from scopes order by vocabulary, tenant")
            return [Scope(*row) for row in rows]

    def check_integrity(self) -> list[str]:
        """Return the errors that SQLite finds in the file."""
        with self._file.transaction(writes=False) as file:
            found = [line for (line,) in file.execute("pragma integrity_check")]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Close the file, and end all waits."""
        self._closed.set()
        self._file.close()

    def _key_file(self, scope: Scope) -> Path:
        return self._keys / blake2b("\0".join(scope).encode(), digest_size=16).hexdigest()


def _make_folders(folder: Path) -> None:
    try:
        (folder / KEYS).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"a corpus can't be kept in {str(folder)!r}: {error.strerror}; name a folder"
        ) from error


def _stats(
    num_entries: int,
    num_bytes: int,
    num_snapshot_bytes: int,
    oldest: int | None,
    written: int | None,
    most_bytes: int | None,
    most_age_s: float,
) -> ScopeStats:
    retention = Retention(most_bytes, most_age_s) if most_bytes else None
    return ScopeStats(num_entries, num_bytes, num_snapshot_bytes, oldest or 0, written or 0, retention)


def _ensured(file: sqlite3.Connection, scope: Scope) -> int:
    """Return the scope's number, a new one if it has none."""
    file.execute("insert or ignore into scopes (vocabulary, tenant) values (?, ?)", scope)
    number: int = file.execute(f"select {_SCOPE}", scope).fetchone()[0]
    return number


def _epoch(file: sqlite3.Connection, scope: Scope) -> int:
    row = file.execute(f"select epoch from scopes where id = {_SCOPE}", scope).fetchone()
    return row[0] if row else 0


def _drop_snapshots(file: sqlite3.Connection, number: int, num_kept: int) -> None:
    """Drop the scope's complete snapshots except the newest."""
    file.execute(
        "delete from snapshots where scope = ?1 and is_complete and id not in"
        " (select id from snapshots where scope = ?1 and is_complete order by id desc limit ?2)",
        (number, num_kept),
    )


def _id(cursor: Cursor) -> int:
    try:
        return int(cursor or 0)
    except ValueError:
        raise CorpusError(f"{cursor!r} is no cursor of an SQLite corpus: begin at START") from None


def _key_error(path: Path, error: OSError) -> CorpusError:
    return CorpusError(f"the wrapped key {str(path)!r} can't be used: {error.strerror}")
