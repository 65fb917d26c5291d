"""What the files of both stores hold after an erasure, and what a crash or a rollback brings back."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from agentspec.cli import main
from agentspec.corpus.batch import Output, decode
from agentspec.corpus.encryption import KeyRing, OperatorKey
from agentspec.corpus.settings import KEY_VARIABLE
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.corpus.store import START, CorpusStore, Scope, open_store
from agentspec.errors import BatchError, CorpusError
from tests.corpus.support.redis_server import running_at
from tests.corpus.support.replica import VOCAB_SIZE, VOCABULARY, Replica, output, stored
from tests.support.ports import reserved_port

KEY = bytes(range(32))
ACME = Scope(VOCABULARY, "acme")
ALL = 1 << 30
BIG_MIB = 60
DUMPS = ("--save", "3600 1", "--rdbcompression", "no")
MEMORY = f"""
import resource, sys
from agentspec.corpus.store import Scope, open_store
from tests.corpus.support.replica import Replica
replica = Replica(open_store(sys.argv[1]), "reader")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
replica.learn()
store, scope = replica.log.store, Scope("{VOCABULARY}", "acme")
store.wait({{scope: ""}}, 1.0)
more_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
print(replica.held(), replica.learner.figures().num_damaged, more_mib)
"""


class Server:
    """A Redis server that keeps its folder over a crash."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.folder = folder
        self._port, self._options = port, options
        self._stack = ExitStack()
        self.url = f"redis://127.0.0.1:{port}/0"
        self.start()

    def start(self) -> None:
        self._stack.enter_context(running_at(self._port, self.folder, *self._options))

    def kill(self) -> None:
        self._stack.close()  # by SIGKILL

    def client(self) -> Any:
        return closing(redis.Redis(port=self._port))


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    folder.mkdir(exist_ok=True)
    with reserved_port() as port:
        server = Server(folder, port, *options)
        try:
            yield server
        finally:
            server.kill()


def forget(location: str, *arguments: str) -> int:
    return main(["corpus", "forget", "--corpus", location, "--tenant", "acme", "--yes", *arguments])


def fill(replica: Replica, num: int = 12) -> dict[str, list[tuple[int, ...]]]:
    """Publish outputs of two stages, each in a batch of its own, and a snapshot of the first ones."""
    tokens = np.random.default_rng(7).integers(0, VOCAB_SIZE, (num, 200))
    sent: dict[str, list[tuple[int, ...]]] = {"gone": [], "kept": []}
    for number, row in enumerate(tokens.tolist()):
        stage = ("gone", "kept")[number % 2]
        sent[stage].append(tuple(row))
        replica.finish(output(row, stage))
        replica.pump()
        if number == num // 2:
            assert replica.keeper._writer.write("acme")
    return sent


def held(store: CorpusStore, keys: KeyRing | None = None) -> set[tuple[int, ...]]:
    log = Replica(store, "reader", keys=keys).log
    records = [record for batch in stored(log, "acme") for record in batch.records]
    return {tuple(record.tokens.tolist()) for record in records if isinstance(record, Output)}


def marks_of(store: CorpusStore, key: bytes | None) -> list[bytes]:
    """Return a piece of each batch that holds an output of the stage that goes: no other has it."""
    data_key = OperatorKey(key).unwrap(ACME, store.wrapped_key(ACME) or b"") if key else None
    parts = [entry.batch for entry in store.read(ACME, START, ALL)]
    found = []
    for data in parts:
        assert isinstance(data, bytes)
        records = decode(data, "acme", data_key).records
        if any(isinstance(record, Output) and record.stage.path == ("gone",) for record in records):
            found.append(data[-48:-16])
    return found


def files_with(folder: Path, marks: list[bytes]) -> list[str]:
    names = []
    for path in folder.rglob("*"):
        if path.is_file() and any(mark in path.read_bytes() for mark in marks):
            names.append(path.name)
    return names


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what another process does on its own."""
    for _ in range(600):
        if is_so():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it never was")


# ---- raw files ----


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("place", ["sqlite", "dump", "append-only file", "both"])
@pytest.mark.parametrize("what", [("--stage", "gone"), ()], ids=["stage", "tenant"])
def test_no_file_holds_what_was_erased(tmp_path, place, key, what, monkeypatch, capsys):
    if key:
        monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(key).decode())
    log = ("--appendonly", "yes")
    options = {"dump": DUMPS, "append-only file": log, "both": (*DUMPS, *log)}
    folder = tmp_path / "store"
    with ExitStack() as stack:
        location = str(folder)
        if place != "sqlite":
            server = stack.enter_context(serving(folder, *options[place]))
            location = server.url
        store = stack.enter_context(closing(open_store(location)))
        keys = KeyRing(store, key) if key else None
        sent = fill(Replica(store, keys=keys))
        marks = marks_of(store, key)
        if place in ("dump", "both"):
            with server.client() as client:
                client.save()
        assert len(marks) == len(sent["gone"])
        assert files_with(folder, marks)
        assert forget(location, *what) == 0
        wait_until(lambda: not files_with(folder, marks))  # a server deletes its old files in a thread
        kept = set(sent["kept"]) if what else set()
        assert held(store, KeyRing(store, key) if key else None) == kept
        if place != "sqlite":
            server.kill()
            server.start()
            assert held(store, KeyRing(store, key) if key else None) == kept


def test_bytes_of_entries_that_retention_dropped_leave_with_an_erasure(tmp_path):
    with serving(tmp_path / "store", *DUMPS) as server, closing(open_store(server.url)) as store:
        fill(Replica(store))
        marks = marks_of(store, None)
        with server.client() as client:
            (log,) = client.keys("*:log")
            client.xtrim(log, maxlen=client.xlen(log) - 1, approximate=False)  # one of the first block
            client.save()
        assert files_with(server.folder, marks[:1])  # it is gone from the log alone
        assert forget(server.url, "--stage", "gone") == 0
        assert not files_with(server.folder, marks)


def test_the_data_key_changes_and_the_old_one_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(KEY).decode())
    for location in (str(tmp_path / "corpus"), "redis"):
        with ExitStack() as stack:
            server = stack.enter_context(serving(tmp_path / "store", *DUMPS)) if location == "redis" else None
            store = stack.enter_context(closing(open_store(server.url if server else location)))
            replica = Replica(store, keys=KeyRing(store, KEY))
            fill(replica)
            wrapped = store.wrapped_key(ACME)
            backup = [entry.batch for entry in store.read(ACME, START, ALL)]
            assert forget(server.url if server else location, "--stage", "gone") == 0
            key = OperatorKey(KEY).unwrap(ACME, store.wrapped_key(ACME) or b"")
            assert key.former == ()
            for data in backup:
                with pytest.raises(BatchError, match="encrypted with the key"):
                    decode(data, "acme", key)
            assert not files_with(server.folder if server else tmp_path / "corpus", [wrapped[12:44]])
            replica.finish(output([1, 2, 3], "kept"))  # it has the old key
            replica.pump()
            assert (1, 2, 3) in held(store, KeyRing(store, KEY))


# ---- when the server's files can't be written anew ----


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (DUMPS, ["-bgsave"]),
        (DUMPS, ["-info"]),
        (("--appendonly", "yes"), ["-bgrewriteaof"]),
        ((*DUMPS, "--appendonly", "yes"), ["-bgsave", "-bgrewriteaof"]),
    ],
)
def test_an_erasure_that_may_come_back_says_so(tmp_path, options, refused, capsys):
    with serving(tmp_path / "store", *options) as server, closing(open_store(server.url)) as store:
        sent = fill(Replica(store))
        with server.client() as client:
            rules = ["on", ">pw", "~agentspec:corpus:*", "+@all", *refused]
            client.execute_command("ACL", "SETUSER", "engine", *rules)
        location = server.url.replace("redis://", "redis://engine:pw@")
        assert forget(location, "--stage", "gone") == 3
        said = capsys.readouterr()
        assert "not for good yet: " in said.err
        assert "as its administrator" in said.err
        assert "pw@" not in said.out + said.err
        assert held(store) == set(sent["kept"])


def test_a_disk_that_refuses_the_dump_is_reported(tmp_path, capsys):
    with serving(tmp_path / "store", *DUMPS) as server, closing(open_store(server.url)) as store:
        fill(Replica(store))
        (server.folder / "dump.rdb").mkdir()  # it can't be replaced by a file
        (server.folder / "dump.rdb" / "x").touch()
        assert forget(server.url) == 3
        assert "the last dump of the server still holds" in capsys.readouterr().err


def test_a_server_that_keeps_nothing_writes_no_file(tmp_path, capsys):
    with serving(tmp_path / "store") as server, closing(open_store(server.url)) as store:
        fill(Replica(store))
        assert forget(server.url, "--stage", "gone") == 0
        assert not (server.folder / "dump.rdb").exists()


# ---- crashes and rollbacks ----


@pytest.mark.parametrize("what", [("--stage", "gone"), ()], ids=["stage", "tenant"])
def test_engines_repeat_an_erasure_that_the_store_has_lost(tmp_path, what, capsys):
    with serving(tmp_path / "store", *DUMPS) as server, closing(open_store(server.url)) as store:
        here = Replica(store, "a")
        sent = fill(here)
        with server.client() as client:
            client.save()
        shutil.copy(server.folder / "dump.rdb", tmp_path / "old.rdb")
        assert forget(server.url, *what) == 0
        here.learn()
        server.kill()
        shutil.copy(tmp_path / "old.rdb", server.folder / "dump.rdb")
        server.start()
        assert set(sent["gone"]) <= held(store)  # all is back
        before = here.held()
        here.learn()
        here.keeper.step()
        assert held(store) == (set(sent["kept"]) if what else set())
        assert here.held() == before
        late = Replica(store, "b")
        late.learn()
        assert {tokens for _, tokens in late.held()} == held(store)
        marks = store.marks(ACME)
        here.learn()
        here.keeper.step()
        assert store.marks(ACME) == marks  # it is over


@pytest.mark.parametrize("location", ["sqlite", "redis"], indirect=True)
def test_engines_keep_their_trees_and_their_key_when_the_store_is_emptied(
    location, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(KEY).decode())
    with closing(open_store(location)) as store:
        here, there = (Replica(store, name, keys=KeyRing(store, KEY)) for name in "ab")
        here.forget_tenant("acme")  # there is an epoch to lose
        for replica in (here, there):
            replica.learn()
        here.finish(output([1], "kept"))
        here.pump()
        there.learn()
        if location.startswith("redis"):
            with closing(redis.Redis.from_url(location)) as client:
                client.flushall()
        else:
            shutil.rmtree(location)
        new = Replica(store, "c", keys=KeyRing(store, KEY))
        new.finish(output([2], "gone"))
        new.pump()  # with a key of its own
        for replica in (here, there, new):
            replica.learn()
        for number, replica in enumerate((here, there, new), 3):
            replica.finish(output([number], "kept"))
            replica.pump()
            replica.pump()
        for replica in (here, there, new):
            replica.learn()
        assert ("kept", (1,)) in there.held()
        assert {("kept", (number,)) for number in (3, 4, 5)} <= here.held().keys() & there.held().keys()
        here.finish(output([6], "gone"))
        here.pump()
        for replica in (there, new):
            replica.learn()
        assert forget(location, "--stage", "gone") == 0
        for replica in (here, there, new):
            replica.learn()
            assert not [one for one in replica.held() if one[0] == "gone"]


def test_an_erasure_that_can_not_read_a_batch_fails_and_reaches_all(location, capsys):
    with closing(open_store(location)) as store:
        here = Replica(store, "a")
        here.finish(output([1], "gone"))
        here.finish(output([2], "kept"))
        here.pump()
        data = store.read(ACME, START, ALL)[0].batch
        store.publish(ACME, data[:-1] + bytes([data[-1] ^ 1]))  # it may hold anything
        late = Replica(store, "b")
        late.learn()
        assert forget(location, "--stage", "gone") == 1
        assert "1 batches of tenant 'acme' could not be read, and were removed" in capsys.readouterr().err
        for replica in (here, late):
            replica.learn()
            assert set(replica.held()) == {("kept", (2,))}
        assert held(store) == {(2,)}
        assert forget(location, "--stage", "gone") == 0


# ---- at the same time ----


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_publishers_lose_nothing_while_a_log_is_rewritten(location, key):
    with closing(open_store(location)) as store:
        keys = KeyRing(store, key) if key else None
        fill(Replica(store, "first", keys=keys))
        is_over, has_begun = threading.Event(), threading.Barrier(3)
        sent: list[int] = []

        def publish(name: str) -> None:
            with closing(open_store(location)) as own:
                replica = Replica(own, name, keys=KeyRing(own, key) if key else None)
                number = 0
                while not is_over.is_set() and number < 4000:
                    tokens = [ord(name), number // 64, number % 64]
                    replica.finish(output(tokens, "kept"))
                    while replica.publisher.figures().num_published <= number:
                        replica.pump()
                    number += 1
                    if number == 1:
                        has_begun.wait(60.0)
                sent.append(number)

        threads = [threading.Thread(target=publish, args=(name,)) for name in "AB"]
        for thread in threads:
            thread.start()
        eraser = Replica(store, "eraser", keys=keys)
        has_begun.wait(60.0)
        try:
            for _ in range(4):
                eraser.forget_stage("gone")
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        found = held(store, KeyRing(store, key) if key else None)
        assert sum(len(tokens) == 3 for tokens in found) == sum(sent)
        assert sum(len(tokens) == 200 for tokens in found) == 6


def test_a_rewriting_that_another_holder_overtook_changes_nothing(location):
    with closing(open_store(location)) as store:
        store.publish(ACME, b"x")
        fence = store.lease(ACME, "slow", 600.0)
        assert fence is not None
        store.lease(ACME, "slow", 600.0)
        with pytest.raises(CorpusError, match="repeat it"):
            store.rewrite(ACME, [(store.end(ACME), None)], fence)
        assert [entry.batch for entry in store.read(ACME, START, ALL)] == [b"x"]
        store.erase(ACME)
        store.publish(ACME, b"new")
        with pytest.raises(CorpusError, match="repeat it"):
            store.rewrite(ACME, [], fence)
        assert [entry.batch for entry in store.read(ACME, START, ALL)] == [b"new"]


# ---- sizes ----


def test_what_is_too_long_takes_no_memory(location):
    with closing(open_store(location)) as store:
        replica = Replica(store)
        replica.finish(output([1]))
        replica.pump()
        add_long(location)
        replica.finish(output([2]))
        replica.pump()
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, location], capture_output=True, text=True, check=True
        )
        outputs, _, rest = done.stdout.rpartition("} ")
        assert "(1,)" in outputs
        assert "(2,)" in outputs
        num_damaged, more_mib = map(int, rest.split())
        assert num_damaged == 2
        assert more_mib < BIG_MIB // 2
        assert forget(location, "--stage", "plan") == 0


def add_long(location: str) -> None:
    if location.startswith("redis"):
        with closing(redis.Redis.from_url(location)) as client:
            (log,) = client.keys("*:log")
            for _ in range(2):
                client.xadd(log, {"batch": bytes(BIG_MIB << 20)})
        return
    with closing(SqliteStore(Path(location))) as store, store._file.transaction(writes=True) as file:
        for _ in range(2):
            file.execute(
                "insert into entries (scope, minute, num_bytes, batch)"
                " select id, 1 << 40, 1, zeroblob(?) from scopes",
                (BIG_MIB << 20,),
            )
