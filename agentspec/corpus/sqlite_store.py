"""The corpus of one host: a folder with one SQLite file, and one small file per wrapped key."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from agentspec.corpus.batch import MOST_BATCH_BYTES, check_size
from agentspec.corpus.sqlite_file import SqliteFile
from agentspec.corpus.store import (
    START,
    Cursor,
    Entry,
    Marks,
    Retention,
    Scope,
    ScopeStats,
    Snapshot,
    Unread,
)
from agentspec.errors import ConfigError, CorpusError

logger = logging.getLogger("agentspec")

FILE = "corpus.sqlite"
KEYS = "keys"  # a folder of its own, so that backups may leave it out
_VERSION = 1
_APPLICATION = 0x41675370
_WATCH_S = 0.02
_NUM_SNAPSHOTS = 2  # the newest one, and the previous one for processes that still read it
_TABLES = """
create table scopes (
    id integer primary key, vocabulary text not null, tenant text not null, epoch int not null default 0,
    num_entries int not null default 0, num_bytes int not null default 0,
    fence int not null default 0, holder text not null default '', lease_end_s real not null default 0,
    erasure int not null default 0,
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
"""  # ids begin at the present microsecond, so a new file's ids exceed those of the damaged file before
_LATEST_ID_S = 3600.0  # a later id is no engine's; after the largest id, SQLite can add no row
_LONGEST_LEASE_S = 3600.0  # no engine takes a longer lease
_MOST_NUMBER = 1 << 52
_MOST_KEY_BYTES = 4096
_MOST_FOREIGN = 1024  # number of places that are remembered for num_foreign
_PIECE_BYTES = 4 << 20  # bytes that one transaction rewrites
_BATCH = (  # SQLite checks the length before it reads the value
    "typeof(batch), length(batch), case when typeof(batch) = 'blob' and length(batch) <= "
    f"{MOST_BATCH_BYTES} then batch end"
)
_MOST_NAME = 4096  # characters of a vocabulary and a tenant together
_SCOPE = "(select id from scopes where vocabulary = ? and tenant = ?)"
_HAS_OUTPUTS = """(num_entries > 0 or exists (
    select 1 from snapshots where snapshots.scope = scopes.id and is_complete))"""


class SqliteStore:
    """A :class:`~agentspec.corpus.store.CorpusStore` for the processes of one host.

    A writer waits for the others, at most two seconds. ``wait`` checks for changes every 20 ms.

    Args:
        folder: created if missing; on a local disk, not on NFS.
        retention: how much to keep of each scope.
        clock: seconds since 1970.
        only_reads: never write. A folder without a corpus is an error, and a damaged file stays unchanged.

    Raises:
        ConfigError: the path is not a folder, or holds no corpus to read.
        CorpusError: the file in the folder can't be used.
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
        self._foreign: set[str] = set()  # places of values that no engine wrote
        self._file = SqliteFile(folder / FILE, _TABLES, _VERSION, _APPLICATION, only_reads=only_reads)

    @property
    def num_foreign(self) -> int:
        """Number of values read so far that no engine wrote."""
        return len(self._foreign)

    # ---- the log ----

    def publish(
        self,
        scope: Scope,
        batch: bytes,
        epoch: int | None = None,
        *,
        key: bytes = b"",
        is_erasure: bool = False,
    ) -> bool:
        """Append a batch to the log, and drop entries beyond the retention."""
        check_size(batch)
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            marks = self._marks(file, scope)
            if epoch is not None and marks.epoch != epoch:
                return False
            if key and not (self._read_key(scope) or self._made_key(scope, key)).startswith(key):
                return False
            self._mend_ids(file)
            self._append(file, number, batch)
            if is_erasure:
                self._set_erasure(file, number, max(marks.erasure + 1, self._now_ms()))
            self._drop_beyond_budget(file, number)
            self._drop_old(file)
        return True

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first."""
        entries: list[Entry] = []
        num_bytes = 0
        with self._file.transaction(writes=False) as file:
            query = (
                f"select id, {_BATCH} from entries where scope = {_SCOPE} and id > ? and id < ? order by id"
            )
            last = self._latest_id()
            with contextlib.closing(file.execute(query, (*scope, _id(after), last))) as rows:
                for entry, kind, size, batch in rows:
                    num_bytes += size if batch is not None else 0
                    if entries and num_bytes > most_bytes:
                        break
                    entries.append(Entry(str(entry), _stored(kind, size, batch)))
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
            query = f"select max(id) from entries where scope = {_SCOPE} and id < ?"
            (newest,) = file.execute(query, (*scope, self._latest_id())).fetchone()
            return START if newest is None else str(newest)

    def rewrite(
        self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]], fence: int | None = None
    ) -> None:
        """Replace entries in place, in several transactions. ``drop_previous`` removes their last bytes."""
        for piece in _pieces(entries):
            with self._file.transaction(writes=True) as file:
                number = self._held(file, scope, fence)
                for entry, batch in piece:
                    self._replace(file, number, entry, batch)
        with self._file.transaction(writes=True) as file:
            number = self._held(file, scope, fence)
            file.execute(
                "delete from entries where scope = ?"
                " and (typeof(batch) != 'blob' or length(batch) > ? or id >= ?)",
                (number, MOST_BATCH_BYTES, self._latest_id()),
            )

    def drop_previous(self, scope: Scope) -> None:
        """Remove the snapshots that the present one replaced."""
        with self._file.transaction(writes=True) as file:
            _drop_snapshots(file, _ensured(file, scope), num_kept=1)
        self._file.forget_deleted()

    def settle(self, timeout_s: float) -> list[str]:
        """Return an empty list: an erasure is on disk before its call returns."""
        return []

    def _held(self, file: sqlite3.Connection, scope: Scope, fence: int | None) -> int:
        """Return the scope's number. Raises CorpusError if another process has taken the lease."""
        number = _ensured(file, scope)
        if fence is not None and self._number_of(file, scope, "fence") != fence:
            raise CorpusError(f"tenant {scope.tenant!r} was changed while its log was rewritten: repeat it")
        return number

    def _replace(self, file: sqlite3.Connection, number: int, entry: int, batch: bytes | None) -> None:
        found = file.execute(
            "select minute from entries where scope = ? and id = ?", (number, entry)
        ).fetchone()
        if found is None:
            return
        file.execute("delete from entries where scope = ? and id = ?", (number, entry))
        if batch is not None:
            file.execute(
                "insert into entries (id, scope, minute, num_bytes, batch) values (?, ?, ?, ?, ?)",
                (entry, number, found[0], len(batch), batch),
            )

    def _append(self, file: sqlite3.Connection, number: int, batch: bytes) -> None:
        row = (number, self._minute(), len(batch), batch)
        file.execute("insert into entries (scope, minute, num_bytes, batch) values (?, ?, ?, ?)", row)

    def _has_more(self, scope: Scope, after: Cursor) -> bool:
        with self._file.transaction(writes=False) as file:
            query = f"select 1 from entries where scope = {_SCOPE} and id > ? and id < ? limit 1"
            return file.execute(query, (*scope, _id(after), self._latest_id())).fetchone() is not None

    def _mend_ids(self, file: sqlite3.Connection) -> None:
        """Continue ids from the present time if another program has used the largest one."""
        latest = self._latest_id()
        if file.execute(
            "select 1 from sqlite_sequence where typeof(seq) != 'integer' or seq >= ? limit 1", (latest,)
        ).fetchone():
            file.execute("delete from entries where id >= ?", (latest,))
            file.execute("delete from snapshots where id >= ?", (latest,))
            now = int(time.time() * 1e6)
            file.execute(
                "update sqlite_sequence set seq = ? where typeof(seq) != 'integer' or seq >= ?", (now, latest)
            )

    def _latest_id(self) -> int:
        return int((time.time() + _LATEST_ID_S) * 1e6)

    # ---- retention ----

    def _drop_beyond_budget(self, file: sqlite3.Connection, number: int) -> None:
        """Drop the scope's oldest entries beyond the limit of bytes, never its newest entry."""
        query = "select cast(num_entries as int), cast(num_bytes as int) from scopes where id = ?"
        num_entries, num_bytes = file.execute(query, (number,)).fetchone()
        excess = num_bytes - self._retention.most_bytes
        last = 0
        query = "select id, length(batch) from entries where scope = ? order by id limit ?"
        with contextlib.closing(file.execute(query, (number, max(0, num_entries - 1)))) as rows:
            while excess > 0 and (row := rows.fetchone()):
                last = row[0]
                excess -= row[1] or 0
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

    def marks(self, scope: Scope) -> Marks:
        """Return the numbers of the scope's last erasures."""
        with self._file.transaction(writes=False) as file:
            return self._marks(file, scope)

    def mark(self, scope: Scope, erasure: int) -> None:
        """Raise the number of the last erasure of a stage or a person to at least this one."""
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            self._set_erasure(file, number, max(self._marks(file, scope).erasure, erasure))

    def erase(self, scope: Scope, epoch: int = 0) -> None:
        """Remove the scope's wrapped key, then its entries and snapshots, and begin a new epoch."""
        if epoch and self.marks(scope).epoch >= epoch:
            return
        self._remove_key(scope)
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            before = self._marks(file, scope).epoch
            file.execute("delete from entries where scope = ?", (number,))
            file.execute("delete from snapshots where scope = ?", (number,))
            file.execute(
                "update scopes set epoch = ?, fence = ?, num_entries = 0, num_bytes = 0, holder = '',"
                " lease_end_s = 0 where id = ?",
                (
                    max(before, epoch) if epoch else max(before + 1, int(time.time())),
                    self._number_of(file, scope, "fence") + 1,
                    number,
                ),
            )
        self._file.forget_deleted()

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number if the holder may write the snapshot now."""
        now_s = self._clock()
        with self._file.transaction(writes=True) as file:
            number = _ensured(file, scope)
            self._drop_old(file)
            other, end_s = file.execute(
                "select holder, lease_end_s from scopes where id = ?", (number,)
            ).fetchone()
            is_held = isinstance(end_s, int | float) and now_s < end_s < now_s + _LONGEST_LEASE_S
            if other != holder and is_held:
                return None
            fence = (self._number_of(file, scope, "fence") or self._now_ms()) + 1
            file.execute(
                "update scopes set fence = ?, holder = ?, lease_end_s = ? where id = ?",
                (fence, holder, now_s + ttl_s, number),
            )
            file.execute("delete from snapshots where scope = ? and not is_complete", (number,))
        return fence

    def _marks(self, file: sqlite3.Connection, scope: Scope) -> Marks:
        return Marks(self._number_of(file, scope, "epoch"), self._number_of(file, scope, "erasure"))

    def _number_of(self, file: sqlite3.Connection, scope: Scope, column: str) -> int:
        """Return a number of a scope; 0 if it is missing or not a number, since another program wrote it."""
        row = file.execute(f"select {column} from scopes where id = {_SCOPE}", scope).fetchone()
        found = 0 if row is None else row[0]
        if isinstance(found, int) and 0 <= found <= _MOST_NUMBER:
            return found
        self._note_foreign(f"the {column} of tenant {scope.tenant!r}")
        return 0

    def _set_erasure(self, file: sqlite3.Connection, number: int, erasure: int) -> None:
        file.execute("update scopes set erasure = ? where id = ?", (erasure, number))

    def _now_ms(self) -> int:
        return int(time.time() * 1000)

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
        """Return the scope's newest valid snapshot, or None."""
        with self._file.transaction(writes=False) as file:
            row = file.execute(
                f"select id, cursor, num_parts from snapshots where scope = {_SCOPE} and is_complete"
                " order by id desc limit 1",
                scope,
            ).fetchone()
        if row is None:
            return None
        number, cursor, num_parts = row
        is_ours = isinstance(cursor, str) and re.fullmatch("[0-9]{0,19}", cursor)
        if is_ours and int(cursor or 0) < self._latest_id() and isinstance(num_parts, int):
            return Snapshot(cursor, self._parts(number, num_parts))
        self._note_foreign(f"the snapshot of tenant {scope.tenant!r}")
        return None

    def _begin_snapshot(self, scope: Scope, fence: int, cursor: Cursor) -> int | None:
        """Insert a snapshot's row and return its id. A newer lease or an erasure deletes the row."""
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

    def _parts(self, snapshot: int, num_parts: int) -> Iterator[bytes | Unread]:
        for number in range(num_parts):
            with self._file.transaction(writes=False) as file:
                query = f"select {_BATCH} from parts where snapshot = ? and number = ?"
                row = file.execute(query, (snapshot, number)).fetchone()
            if row is None:
                raise CorpusError("this snapshot was replaced while it was read: read the new one")
            yield _stored(*row)

    # ---- keys, sizes ----

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If the scope has none, store the candidate and return it."""
        found = self._read_key(scope)
        return found if found is not None or candidate is None else self._made_key(scope, candidate)

    def replace_key(self, scope: Scope, before: bytes, wrapped: bytes) -> bool:
        """Replace the scope's wrapped key. Return False if it is not ``before``."""
        path = self._key_file(scope)
        with self._file.transaction(writes=True):  # so that no batch is published meanwhile
            if self._read_key(scope) != before:
                return False
            with self._key_errors(path):
                os.replace(self._written_key(path, wrapped), path)
        return True

    def _read_key(self, scope: Scope) -> bytes | None:
        path = self._key_file(scope)
        with self._key_errors(path):
            try:
                with path.open("rb") as file:
                    return file.read(_MOST_KEY_BYTES)
            except FileNotFoundError:
                return None

    def _made_key(self, scope: Scope, candidate: bytes) -> bytes:
        path = self._key_file(scope)
        with self._key_errors(path):
            own = self._written_key(path, candidate)
            with contextlib.suppress(FileExistsError):
                os.link(own, path)  # atomic, and fails if another process's key is there
            own.unlink()
            return path.read_bytes()

    def _written_key(self, path: Path, wrapped: bytes) -> Path:
        """Write a key to a temporary file. Return the path of that file."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        own.unlink(missing_ok=True)
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(wrapped)
            file.flush()
            os.fsync(file.fileno())
        return own

    def _remove_key(self, scope: Scope) -> None:
        path = self._key_file(scope)
        with self._key_errors(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # a folder in the key's place, which no engine created
            else:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _key_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
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
                " order by snapshots.id desc limit 1)"
                f" from scopes where {_HAS_OUTPUTS}"
            ).fetchall()
            scopes = {tuple(row[:2]): row[2:] for row in rows}
            return {scope: _stats(*scopes[tuple(scope)]) for scope in self._named(scopes)}

    def scopes(self) -> list[Scope]:
        """Return the scopes that have ever had outputs, or a lease."""
        with self._file.transaction(writes=False) as file:
            return sorted(self._named(file.execute("select vocabulary, tenant from scopes")))

    def _named(self, rows: Iterable[Sequence[object]]) -> Iterator[Scope]:
        """Yield the scopes of these rows, without rows that another program has written."""
        for vocabulary, tenant in rows:
            if (
                isinstance(vocabulary, str)
                and isinstance(tenant, str)
                and len(vocabulary + tenant) <= _MOST_NAME
            ):
                yield Scope(str(vocabulary), str(tenant))
            else:
                self._note_foreign(f"the scope {str(vocabulary)[:40]!r}, {str(tenant)[:40]!r}")

    def _note_foreign(self, what: str) -> None:
        """Count a place with a value that no engine wrote, once per place. Log the first one."""
        if not self._foreign:
            logger.warning("the corpus in %s holds values that no engine wrote: %s", self._keys.parent, what)
        if len(self._foreign) < _MOST_FOREIGN:
            self._foreign.add(what)

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


def _stats(*found: object) -> ScopeStats:
    """Return a scope's sizes, with 0 for values that another program has replaced."""
    numbers = [number if isinstance(number, int | float) and number > 0 else 0 for number in found]
    return ScopeStats(*map(int, numbers))


def _stored(kind: str, size: int | None, batch: bytes | None) -> bytes | Unread:
    """Return a batch, or the reason why it was not read."""
    if kind != "blob" or batch is None:
        size = size or 0
        is_long = kind == "blob"
        reason = f"it has {size} bytes, not at most {MOST_BATCH_BYTES}" if is_long else "no engine wrote it"
        return Unread(reason, size)
    return batch


def _pieces(entries: Iterable[tuple[Cursor, bytes | None]]) -> Iterator[list[tuple[int, bytes | None]]]:
    """Group changes for transactions."""
    piece: list[tuple[int, bytes | None]] = []
    num_bytes = 0
    for cursor, batch in entries:
        check_size(batch or b"")
        piece.append((_id(cursor), batch))
        num_bytes += len(batch or b"")
        if num_bytes >= _PIECE_BYTES:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def _ensured(file: sqlite3.Connection, scope: Scope) -> int:
    """Return the scope's number. Insert the scope if it is new."""
    file.execute("insert or ignore into scopes (vocabulary, tenant) values (?, ?)", scope)
    number: int = file.execute(f"select {_SCOPE}", scope).fetchone()[0]
    return number


def _drop_snapshots(file: sqlite3.Connection, number: int, num_kept: int) -> None:
    """Drop the scope's complete snapshots, except the newest ones."""
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
