"""The SQLite file of a corpus: opening, transactions, and recovery from damage.

This module owns the file's connections, locks and errors. ``sqlite_store`` defines the tables.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from agentspec.errors import CorpusError, ForestFileError
from agentspec.forest.file import moved_aside

BUSY_TIMEOUT_S = 2.0
_POLL_S = 0.01
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")

logger = logging.getLogger("agentspec")


class SqliteFile:
    """A database that the processes of one host share. Thread-safe.

    Its connections are closed before a fork, since SQLite's locks do not survive one. Both processes open the
    file again for their next call. A damaged file is renamed with a warning, and a new file is created. If
    another process has done so, or the file was deleted, the next call opens or creates the new file.

    Args:
        path: the file; only its owner may read it.
        tables: SQL that creates the tables.
        version: version of the tables.
        application: number that marks SQLite files of this kind.
        only_reads: never write. A missing or damaged file is an error and stays unchanged.

    Raises:
        CorpusError: the file can't be used, belongs to another program, or has another format.
    """

    def __init__(
        self,
        path: Path,
        tables: str,
        version: int,
        application: int,
        *,
        only_reads: bool = False,
    ) -> None:
        self._path = path
        self._tables = tables
        self._version = version
        self._application = application
        self._only_reads = only_reads
        self._lock = threading.Lock()
        self._is_closed = False
        self._connections: list[sqlite3.Connection] = []  # one for the calls, one that watches for changes
        self._identity: os.stat_result | None = None  # identity of the file that the connections have open
        self._num_opened = 0
        with self._errors():
            self._ensure_open()
        _close_before_forks(self)

    @contextlib.contextmanager
    def transaction(self, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that ends with the block. Writers exclude each other."""
        with self._errors():
            connection = self._ensure_open()[0]
            connection.execute("begin immediate" if writes else "begin")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:  # SQLite may have rolled back already
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("rollback")
                raise

    def data_version(self) -> tuple[int, int]:
        """Return a value that differs after each change of the file by any process."""
        with self._errors():
            (version,) = self._ensure_open()[1].execute("pragma data_version").fetchone()
            return self._num_opened, version

    def forget_deleted(self) -> None:
        """Remove deleted content from the file, its write-ahead log, and renamed damaged files. Syncs.

        SQLite overwrites deleted rows, but not the copies that stay in a page when a row moves to another
        page. So the file is written again, which needs the same space once more and takes 1 to 3 s for 256
        MiB. Other processes can't write meanwhile.

        Raises:
            CorpusError: another process's transaction lasts too long, and the write-ahead log keeps the
                content.
        """
        with self._errors():
            connection = self._ensure_open()[0]
            connection.execute("vacuum")
            is_busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
            if is_busy:
                raise CorpusError(
                    f"what was erased is still in {self._path.name}-wal, which another process reads: "
                    "repeat it"
                )
            for damaged in self._path.parent.glob(f"{self._path.name}*.damaged-*"):
                damaged.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            self._disconnect()

    def begin_fork(self) -> None:
        """Close the connections, and keep other threads from opening them until :meth:`end_fork`."""
        self._lock.acquire()
        self._disconnect()

    def end_fork(self) -> None:
        """Let threads use the file again, in the parent and in the child."""
        self._lock.release()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Hold the lock. Turn errors of SQLite and the system into CorpusError."""
        with self._lock:
            if self._is_closed:
                raise CorpusError(f"the corpus {str(self._path)!r} is closed")
            try:
                with self._damage():
                    yield
            except (sqlite3.Error, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise CorpusError(f"the corpus {str(self._path)!r} can't be used now: {reason}") from error

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        """Rename the file on an error that means damage. The next call creates a new file."""
        try:
            yield
        except sqlite3.Error as error:
            if _is_damage(error) and not self._only_reads:
                with self._exclusive():
                    if self._is_current():  # else another process has renamed it already
                        self._disconnect()
                        self._move_aside(error)
                self._disconnect()
            raise

    def _ensure_open(self) -> list[sqlite3.Connection]:
        """Return the connections to the file that is now at the path."""
        if not self._is_current():
            self._disconnect()
            if not self._only_reads:  # the folder may have been deleted
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._exclusive():
                try:
                    self._connect()
                except sqlite3.Error as error:
                    if self._only_reads or not _is_damage(error):
                        raise
                    self._move_aside(error)
                    self._connect()
        return self._connections

    def _is_current(self) -> bool:
        try:
            return self._identity is not None and os.path.samestat(os.stat(self._path), self._identity)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _connect(self) -> None:
        if not self._only_reads:
            with contextlib.suppress(
                FileExistsError
            ):  # an existing file is not opened here: closing it would release SQLite's locks
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        place = f"{self._path.absolute().as_uri()}?mode=rw"  # mode=rw never creates a file
        try:
            for _ in range(2):
                self._connections.append(
                    sqlite3.connect(
                        place, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True
                    )
                )
            for connection in self._connections:
                connection.text_factory = _text
            self._prepare(self._connections[0])
            self._connections[1].execute("pragma data_version").fetchone()
            self._identity = os.stat(self._path)
            self._num_opened += 1
        except BaseException:
            self._disconnect()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create missing tables. Raises CorpusError if the file is of another program or version."""
        (application,) = connection.execute("pragma application_id").fetchone()
        (version,) = connection.execute("pragma user_version").fetchone()
        is_empty = connection.execute("select count(*) from sqlite_master").fetchone() == (0,)
        if not is_empty and application != self._application:
            raise CorpusError(f"{str(self._path)!r} is no corpus and stays as it is: name another folder")
        if not is_empty and version != self._version:
            raise CorpusError(
                f"the corpus {str(self._path)!r} has the format {version}, but this version of AgentSpec "
                f"reads format {self._version}: name another folder"
            )
        if self._only_reads:
            if is_empty:
                raise CorpusError(f"{str(self._path)!r} is an empty file: no engine has used this corpus yet")
            connection.execute("pragma query_only = on")
            return
        connection.execute("pragma journal_mode = wal").fetchone()
        connection.execute("pragma synchronous = normal")
        connection.execute("pragma secure_delete = on").fetchone()  # overwrite deleted content in the file
        if is_empty:
            connection.executescript(
                f"begin immediate; {self._tables} pragma application_id = {self._application}; "
                f"pragma user_version = {self._version}; commit;"
            )

    def _move_aside(self, error: sqlite3.Error) -> None:
        log = self._path.with_name(f"{self._path.name}-wal")
        try:
            if log.exists():
                moved_aside(log)  # first, so that a new database never meets the old database's log
            aside = moved_aside(self._path)
        except ForestFileError as refused:
            raise CorpusError(str(refused)) from refused
        self._path.with_name(f"{self._path.name}-shm").unlink(missing_ok=True)
        logger.warning("the corpus %s is damaged: %s. It is now %s, for a look", self._path, error, aside)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other processes from opening the file or moving it aside."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            deadline = time.monotonic() + BUSY_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(folder)

    def _disconnect(self) -> None:
        self._identity = None
        while self._connections:
            with contextlib.suppress(sqlite3.Error):
                self._connections.pop().close()


def _close_before_forks(file: SqliteFile) -> None:
    reference = weakref.ref(file)
    forking: list[SqliteFile] = []

    def begin() -> None:
        if file := reference():
            file.begin_fork()
            forking.append(file)

    def end() -> None:
        while forking:
            forking.pop().end_fork()

    os.register_at_fork(before=begin, after_in_parent=end, after_in_child=end)


def _text(data: bytes) -> str:
    """Decode a text. Invalid bytes are replaced, since another program may have written them."""
    return data.decode("utf-8", errors="replace")


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(_DAMAGED)
