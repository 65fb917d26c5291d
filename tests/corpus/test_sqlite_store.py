"""The SQLite store: processes that share it, kills, damage, a full disk, forks and versions."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.corpus.store import START, Retention, Scope
from agentspec.errors import ConfigError, CorpusError
from tests.corpus.support.records import SCOPE

ALL = 1 << 30
DAY_S = 86400.0
OTHER = Scope("tekken-v3", "globex")
PUBLISHER = """
import sys
from pathlib import Path
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.corpus.store import Scope
store = SqliteStore(Path(sys.argv[1]))
print("open", flush=True)
number = 0
while number < int(sys.argv[3]):
    store.publish(Scope("tekken-v3", "acme"), sys.argv[2].encode() + b" %d " % number + bytes(20_000))
    number += 1
    print(number, flush=True)
store.close()
"""
FORKED = """
import os, sys, threading
from pathlib import Path
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.corpus.store import Scope
scope, other = Scope("v", "t"), Scope("v", "u")
store = SqliteStore(Path(sys.argv[1]))
store.publish(scope, b"parent")
waiter = threading.Thread(target=store.wait, args=({other: ""}, 600.0))
waiter.start()
for number in range(20):
    child = os.fork()
    if child == 0:
        for _ in range(5):
            store.publish(scope, b"child")
        store.close()
        os._exit(0)
    for _ in range(5):
        store.publish(scope, b"parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert sorted(entry.batch for entry in store.read(scope, "", 1 << 20)) == [b"child"] * 100 + [b"parent"] * 101
store.publish(other, b"wake up")
waiter.join()
store.close()
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


def batches(store: SqliteStore, scope: Scope = SCOPE) -> list[bytes]:
    return [entry.batch for entry in store.read(scope, START, ALL)]


def publisher(folder: Path, name: str, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PUBLISHER, str(folder), name, str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# ---- processes ----


def test_processes_share_a_folder(folder):
    processes = [publisher(folder, name, 40) for name in ("one", "two")]
    for process in processes:
        process.communicate(timeout=300)
        assert process.returncode == 0
    with closing(SqliteStore(folder)) as store:
        found = [batch.split(b" ")[:2] for batch in batches(store)]
    for name in (b"one", b"two"):
        assert [int(number) for who, number in found if who == name] == list(range(40))


def test_a_killed_writer_leaves_whole_entries_alone(folder):
    with closing(SqliteStore(folder)) as store:
        for stop in ("3", "20", "57"):
            process = publisher(folder, stop, 10**9)
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == stop:
                    break
            process.send_signal(signal.SIGKILL)
            process.communicate()
            found = [batch for batch in batches(store) if batch.startswith(stop.encode() + b" ")]
            assert len(found) >= int(stop)
            assert [int(batch.split(b" ")[1]) for batch in found] == list(range(len(found)))
            assert all(batch.endswith(bytes(20_000)) for batch in found)
            store.publish(SCOPE, b"still works")
        assert store.stats()[SCOPE].num_bytes == sum(map(len, batches(store)))


def test_parent_and_child_of_a_fork_both_go_on(folder):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_writer_that_never_ends_is_not_waited_for_forever(folder, monkeypatch):
    monkeypatch.setattr("agentspec.corpus.sqlite_file.BUSY_TIMEOUT_S", 0.05)
    with closing(SqliteStore(folder)) as store, closing(sqlite3.connect(folder / "corpus.sqlite")) as other:
        other.execute("begin immediate")
        with pytest.raises(CorpusError, match="locked"):
            store.publish(SCOPE, b"x")
        assert batches(store) == []
        other.rollback()
        store.publish(SCOPE, b"y")
        assert batches(store) == [b"y"]


# ---- retention by age ----


def test_old_entries_and_snapshots_of_all_scopes_are_dropped(folder):
    clock = Clock()
    with closing(SqliteStore(folder, Retention(most_age_s=DAY_S), clock)) as store:
        store.publish(SCOPE, b"old")
        store.publish(OTHER, b"old")
        assert store.put_snapshot(OTHER, store.lease(OTHER, "holder", 1.0), "1", [b"old"])
        clock.now_s += DAY_S / 2
        store.publish(SCOPE, b"young")
        clock.now_s += DAY_S / 2 + 60
        store.publish(SCOPE, b"new")
        assert batches(store) == [b"young", b"new"]
        assert set(store.stats()) == {SCOPE}
        clock.now_s += 2 * DAY_S
        store.lease(OTHER, "holder", 1.0)
        assert store.stats() == {}


# ---- disk ----


def test_only_the_owner_may_read(folder):
    with closing(SqliteStore(folder)) as store:
        store.publish(SCOPE, b"x")
        store.wrapped_key(SCOPE, b"key")
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"corpus.sqlite", "corpus.sqlite-wal", "corpus.sqlite-shm"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_full_disk_is_an_error_and_nothing_is_half_written(folder):
    with closing(SqliteStore(folder)) as store:
        store.publish(SCOPE, b"before")
        assert store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 1.0), "1", [b"kept"])
        connection = store._file._connections[0]
        (most,) = connection.execute("pragma max_page_count").fetchone()
        connection.execute("pragma max_page_count = 60")
        with pytest.raises(CorpusError, match="full"):
            store.publish(SCOPE, bytes(1_000_000))
        fence = store.lease(SCOPE, "holder", 1.0)
        with pytest.raises(CorpusError, match="full"):
            store.put_snapshot(SCOPE, fence, "2", [bytes(50_000), bytes(1_000_000)])
        with pytest.raises(CorpusError, match="full"):
            store.rewrite(SCOPE, [(store.end(SCOPE), bytes(1_000_000))])
        assert batches(store) == [b"before"]
        assert list(store.snapshot(SCOPE).parts) == [b"kept"]
        assert store.stats()[SCOPE].num_snapshot_bytes == 4
        connection.execute(f"pragma max_page_count = {most}")
        store.publish(SCOPE, bytes(1_000_000))
        assert len(batches(store)) == 2


def test_erased_content_is_in_no_file(folder):
    secret = b"a person's data " * 3000
    with closing(SqliteStore(folder)) as store:
        store.publish(SCOPE, secret)
        store.publish(SCOPE, b"other data")
        assert store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 1.0), "1", [secret])
        assert store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 1.0), "1", [b"without"])
        assert any(b"a person's data" in path.read_bytes() for path in folder.glob("corpus.sqlite*"))
        store.rewrite(SCOPE, [(store.read(SCOPE, START, ALL)[0].cursor, None)])
        store.drop_previous(SCOPE)
        assert not any(b"a person's data" in path.read_bytes() for path in folder.glob("corpus.sqlite*"))
        damaged = folder / "corpus.sqlite.damaged-20260101T000000Z"
        damaged.write_bytes(b"other data")
        store.erase(SCOPE)
        assert not any(b"other data" in path.read_bytes() for path in folder.glob("corpus.sqlite*"))


@pytest.mark.parametrize("seed", [42, 71, 99])  # without VACUUM SQLite leaves copies of moved rows
def test_erased_content_is_in_no_file_after_any_history(folder, seed):
    choice = random.Random(seed)
    scopes = [Scope("v", f"t{number}") for number in range(3)]

    def replaced(scope: Scope) -> list[tuple[str, bytes]]:
        entries = store.read(scope, START, ALL)
        some = sorted(choice.sample(entries, len(entries) // 3), key=lambda entry: int(entry.cursor))
        marks = (b"ERASE-ME-" if b"ERASE" in entry.batch else b"k" for entry in some)
        return [
            (entry.cursor, mark * choice.randrange(1, 300)) for entry, mark in zip(some, marks, strict=True)
        ]

    with closing(SqliteStore(folder, Retention(most_bytes=60_000))) as store:
        for number in range(500):
            scope = choice.choice(scopes)
            is_erased = choice.random() < 0.3 and scope == scopes[0]
            mark = b"ERASE-ME-" if is_erased else b"keep-----"
            store.publish(scope, mark * choice.choice([2, 9, 30, 200, 900]))
            if number % 40 == 39:
                for one in scopes:
                    store.rewrite(one, replaced(one))
        gone = [entry for entry in store.read(scopes[0], START, ALL) if b"ERASE" in entry.batch]
        store.rewrite(
            scopes[0], [(entry.cursor, b"p" * 30 if choice.random() < 0.5 else None) for entry in gone]
        )
        store.drop_previous(scopes[0])
        assert gone
        assert not any(b"ERASE-ME" in path.read_bytes() for path in folder.glob("corpus.sqlite*"))


@pytest.mark.parametrize("damage", [b"", b"no database, but many bytes " * 1000])
def test_a_file_that_is_damaged_at_the_start_is_moved_aside(folder, caplog, damage):
    with closing(SqliteStore(folder)) as store:
        for _ in range(30):
            store.publish(SCOPE, bytes(10_000))
    file = folder / "corpus.sqlite"
    file.write_bytes(damage or b"\0" * 100 + file.read_bytes()[100:])
    with closing(SqliteStore(folder)) as store:
        assert store.stats() == {}
        store.publish(SCOPE, b"anew")
        assert batches(store) == [b"anew"]
    assert len(list(folder.glob("corpus.sqlite.damaged-*"))) == 1
    assert "damaged" in caplog.text


def test_a_file_that_is_damaged_in_use_is_moved_aside(folder, caplog):
    with closing(SqliteStore(folder)) as store, closing(SqliteStore(folder)) as other:
        for _ in range(30):
            store.publish(SCOPE, bytes(10_000))
        end = store.end(SCOPE)
        store._file.forget_deleted()
        file = folder / "corpus.sqlite"
        with file.open("r+b") as opened:
            opened.write(b"\xff" * file.stat().st_size)
        for damaged in (store, other):
            try:
                damaged.publish(SCOPE, b"lost")
            except CorpusError:
                continue
        store.publish(SCOPE, b"one")
        other.publish(SCOPE, b"two")
        assert batches(store)[-2:] == batches(other)[-2:] == [b"one", b"two"]
        assert [entry.batch for entry in store.read(SCOPE, end, ALL)][-2:] == [b"one", b"two"]
    assert len([path for path in folder.glob("corpus.sqlite.damaged-*") if "wal" not in path.name]) == 1


def test_a_reader_makes_and_changes_nothing(folder):
    with pytest.raises(ConfigError, match="there is no corpus in"):
        SqliteStore(folder, only_reads=True)
    assert not folder.exists()
    with closing(SqliteStore(folder)) as store:
        store.publish(SCOPE, b"x")
    with closing(SqliteStore(folder, only_reads=True)) as reader:
        with pytest.raises(CorpusError, match="readonly"):
            reader.publish(SCOPE, b"y")
        with pytest.raises(CorpusError, match="readonly"):
            reader.erase(SCOPE)
        assert batches(reader) == [b"x"]
    file = folder / "corpus.sqlite"
    for damaged in (b"no database, but many bytes " * 1000, b""):
        file.write_bytes(damaged)
        with pytest.raises(CorpusError, match="corpus"), closing(SqliteStore(folder, only_reads=True)):
            pass
        assert file.read_bytes() == damaged
        assert list(folder.glob("*.damaged-*")) == []


def test_a_deleted_file_is_begun_anew(folder):
    with closing(SqliteStore(folder)) as store, closing(SqliteStore(folder)) as other:
        store.publish(SCOPE, b"lost")
        for path in folder.glob("corpus.sqlite*"):
            path.unlink()
        store.publish(SCOPE, b"anew")
        assert batches(other) == [b"anew"]


@pytest.mark.parametrize("gone", ["", "corpus"], ids=["with the folder above", "alone"])
def test_a_folder_that_is_gone_is_made_anew(folder, gone):
    folder = folder / "above" / "corpus"
    with closing(SqliteStore(folder)) as store, closing(SqliteStore(folder)) as other:
        store.publish(SCOPE, b"lost")
        store.wrapped_key(SCOPE, b"key")
        shutil.rmtree(folder.parent / gone)
        assert batches(other) == []
        assert store.wrapped_key(SCOPE, b"another") == b"another"
        store.publish(SCOPE, b"anew")
        assert batches(other) == [b"anew"]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_in_the_place_of_a_folder_is_an_error(folder):
    with closing(SqliteStore(folder)) as store:
        shutil.rmtree(folder)
        folder.write_text("")
        with pytest.raises(CorpusError, match="File exists"):
            store.publish(SCOPE, b"x")
