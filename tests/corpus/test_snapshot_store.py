"""Snapshots in an object store: a local folder, and a real server of the S3 protocol."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.corpus.batch import decode
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.encryption import KeyRing
from agentspec.corpus.join import Losses, join
from agentspec.corpus.object_folder import ObjectFolder
from agentspec.corpus.output import Output
from agentspec.corpus.snapshot_pointer import SnapshotPointer
from agentspec.corpus.snapshot_store import SnapshotStore
from agentspec.corpus.snapshots import LEASE_S
from agentspec.corpus.store import Scope, open_store
from agentspec.errors import ConfigError, CorpusError, SnapshotError
from tests.corpus.support import s3_server
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.records import SCOPE
from tests.corpus.support.replica import VOCABULARY, Replica, output
from tests.support.ports import reserved_port

ALL = 1 << 40
KILLED = """
import os, sys
import agentspec.corpus.snapshot_store as snapshot_store
from agentspec.corpus.store import Scope, open_store

def parts():
    yield b"one"
    yield b"two"
    os._exit(9)

snapshot_store.PIECE_BYTES = 1
location, place, *scope = sys.argv[1:]
store = open_store(location, snapshots=place)
store.put_snapshot(Scope(*scope), store.lease(Scope(*scope), "killed", 0.05), "9", parts())
"""
KEY = bytes(range(32))
ACME = Scope(VOCABULARY, "acme")


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server.running(tmp_path_factory.mktemp("s3"), "bucket") as url:
        yield url


def use_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    values = {"ENDPOINT_URL": endpoint, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "any", "REGION": "us-east-1"}
    for name, value in {**values, "SECRET_ACCESS_KEY": "any"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the place of an empty object store. Each part is an object of its own."""
    monkeypatch.setattr("agentspec.corpus.snapshot_store.PIECE_BYTES", 1)
    if request.param == "file":
        return (tmp_path / "objects").as_uri()
    use_s3(monkeypatch, request.getfixturevalue("s3_url"))
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the place of an object store that refuses connections."""
    monkeypatch.setattr("agentspec.corpus.object_folder._NUM_RETRIES", 0)
    with reserved_port() as port:
        use_s3(monkeypatch, f"http://127.0.0.1:{port}")
        yield "s3://bucket/away"


def replica_of(corpus: Any, place: str | None, name: str = "a", **more: Any) -> Replica:
    return Replica(open_store(str(corpus), snapshots=place), name, **more)


def filled(corpus: Any, place: str | None, **more: Any) -> Replica:
    """Return an engine that has published outputs, and written a snapshot of them."""
    replica = replica_of(corpus, place, **more)
    for number in range(20):
        stage = ("plan", "sql/extract")[number % 2]
        replica.finish(
            output([number] * (number + 1), stage, uses=1 + number, subject=b"ann" * (number == 3))
        )
    replica.pump()
    assert replica.keeper._writer.write("acme")
    return replica


def names_in(place: str) -> list[str]:
    return sorted(one.name for one in ObjectFolder(place).list())


def outputs_in(place: str, scope: Scope = ACME) -> set[tuple[int, ...]]:
    """Return the outputs in all objects, each a batch of its own."""
    folder, found = ObjectFolder(place), set()
    for one in folder.list():
        batch = decode(folder.get(one.name, one.num_bytes) or b"", scope.tenant)
        found |= {tuple(record.tokens.tolist()) for record in batch.records if isinstance(record, Output)}
    return found


def joined(log: BatchLog) -> tuple[list[tuple[Any, ...]], list[Any]]:
    found = join(log, "acme", ALL, Losses())
    outputs = [(one.stage, one.tokens.tolist(), one.subject, one.uses, one.minute) for one in found.outputs]
    return outputs, sorted(map(str, found.tombstones.values()))


# ---- one snapshot, wherever it is ----


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_join_reads_the_same_from_both_places(place, location, tmp_path, is_encrypted):
    logs = []
    for corpus, snapshots in ((location, place), (tmp_path / "beside", None)):
        store = open_store(str(corpus), snapshots=snapshots)
        keys = KeyRing(store, KEY) if is_encrypted else None
        logs.append(filled(corpus, snapshots, keys=keys))
        logs[-1].forget_subject(b"ann")
    there, beside = (joined(replica.log) for replica in logs)
    assert there == beside
    assert len(there[0]) == 19
    assert len(there[1]) == 1


def test_a_new_engine_learns_what_only_the_snapshot_holds(place, location):
    here = filled(location, place)
    here.log.store.rewrite(ACME, [(entry.cursor, None) for entry in here.log.store.read(ACME, "", ALL)])
    late = replica_of(location, place, "b")
    late.learn()
    assert late.held() == here.held()
    assert late.learner.figures().num_failures == 0


def test_content_is_encrypted_in_objects(tmp_path):
    place, store = (tmp_path / "objects").as_uri(), open_store(str(tmp_path / "corpus"))
    filled(tmp_path / "corpus", place, keys=KeyRing(store, KEY))
    with pytest.raises(CorpusError, match="encrypted"):
        outputs_in(place)


def test_only_the_owner_may_read_a_local_folder(tmp_path):
    filled(tmp_path / "corpus", (tmp_path / "objects").as_uri())
    assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700


# ---- writers ----


@given(st.lists(st.binary(max_size=9)), st.integers(1, 30))
def test_any_parts_come_back_from_any_number_of_objects(parts, piece_bytes):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr("agentspec.corpus.snapshot_store.PIECE_BYTES", piece_bytes)
        store = SnapshotStore(MemoryStore(), ObjectFolder(Path(folder).as_uri()), 60.0)
        fence = store.lease(SCOPE, "holder", LEASE_S)
        assert fence is not None
        assert store.put_snapshot(SCOPE, fence, "7", parts)
        found = store.snapshot(SCOPE)
        assert found is not None
        assert (found.cursor, list(found.parts)) == ("7", parts)


def test_two_snapshots_are_kept(place, tmp_path):
    here = filled(tmp_path / "corpus", place)
    first = set(names_in(place))
    for number in range(3):
        here.finish(output([99, number]))
        here.pump()
        assert here.keeper._writer.write("acme")
        assert len({name.split("/")[-2] for name in names_in(place)}) == 2
    assert not first & set(names_in(place))


def test_readers_never_meet_half_a_snapshot(location, objects):
    stores = [open_store(location, snapshots=objects) for _ in range(3)]
    is_done = threading.Event()
    failures: list[object] = []

    def write(name: str, store: Any) -> None:
        for number in range(20):
            while (fence := store.lease(SCOPE, name, LEASE_S)) is None:
                time.sleep(0.005)  # without a pause it can keep the others from the lock for seconds
            parts = [b"%s %d %d" % (name.encode(), number, part) for part in range(5)]
            if not store.put_snapshot(SCOPE, fence, "1", parts):
                failures.append((name, number))
            store.lease(SCOPE, name, 0.0)

    def read() -> None:
        while not is_done.is_set():
            try:
                found = stores[2].snapshot(SCOPE)
                parts = list(found.parts) if found else []
            except CorpusError as error:  # it was replaced twice meanwhile, or the log's pointer to it
                if "replaced while it was read" not in str(error):
                    failures.append(error)
                continue
            if parts and (len(parts) != 5 or len({part.rpartition(b" ")[0] for part in parts}) != 1):
                failures.append(parts)

    writers = [threading.Thread(target=write, args=args) for args in zip("ab", stores[:2], strict=True)]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    is_done.set()
    reader.join()
    assert failures == []


@pytest.mark.parametrize("ending", ["snapshot", "erasure"])
def test_what_a_killed_writer_left_is_never_read_and_is_deleted(ending, place, location):
    here = filled(location, place)
    kept, before = joined(here.log), names_in(place)
    arguments = [sys.executable, "-c", KILLED, location, place, *ACME]
    assert subprocess.run(arguments, check=False).returncode == 9
    left = set(names_in(place)) - set(before)
    assert len(left) == 2
    assert joined(here.log) == kept
    if ending == "snapshot":
        here.finish(output([1]))
        here.pump()
        while not here.keeper._writer.write("acme"):  # the lease of the killed one ends
            pass
    else:
        here.forget_stage("plan")
    assert not left & set(names_in(place))


def test_old_objects_of_other_tenants_are_deleted(tmp_path):
    place = (tmp_path / "objects").as_uri()
    filled(tmp_path / "gone", place)
    (tmp_path / "objects" / "notes.txt").write_text("an operator's")
    week_ago_s = time.time() - 8 * 86400
    old = [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]
    for path in old:
        os.utime(path, (week_ago_s, week_ago_s))
    other = replica_of(tmp_path / "corpus", place)
    other.finish(output([1], tenant="globex"))
    other.pump()
    assert other.keeper._writer.write("globex")
    assert [path.name for path in old if path.exists()] == ["notes.txt"]


# ---- what is lost or damaged ----


def test_lost_objects_are_no_snapshot_and_the_next_one_heals(place, location):
    here = filled(location, place)
    ObjectFolder(place).delete(names_in(place))
    late = replica_of(location, place, "b")
    late.learn()
    assert late.held() == here.held()
    assert here.keeper._writer.write("acme")
    assert len(joined(here.log)[0]) == 20


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content[:-1] + b"?"])
def test_damaged_objects_are_counted(damage, tmp_path):
    place = (tmp_path / "objects").as_uri()
    filled(tmp_path / "corpus", place)
    for path in filter(Path.is_file, (tmp_path / "objects").rglob("*")):
        path.write_bytes(damage(path.read_bytes()))
    late = replica_of(tmp_path / "corpus", place, "b")
    late.learn()
    assert late.held() == {}
    assert late.learner.figures().num_damaged == 1


@pytest.mark.parametrize("part", [b"", b"AgSpecPt", b"AgSpecPt\1\0{}", b"AgSpecPt\1\0?", bytes(99)])
def test_a_damaged_pointer_is_none(part):
    assert SnapshotPointer.decode(part) is None


def test_a_pointer_comes_back_and_a_newer_one_is_refused():
    pointer = SnapshotPointer.new("s3://bucket").with_piece([b"one", b""]).with_piece([])
    assert SnapshotPointer.decode(pointer.encode()) == pointer
    with pytest.raises(SnapshotError, match="format 2"):
        SnapshotPointer.decode(pointer.encode().replace(b"\1\0", b"\2\0", 1))


def test_a_pointer_names_no_huge_object():
    pointer = SnapshotPointer("s3://bucket", "0" * 32, ((1 << 22,) * 4,))
    assert SnapshotPointer.decode(pointer.encode()) is None


# ---- an object store that is away, or another one ----


def test_an_engine_joins_from_the_log_while_the_object_store_is_away(away, tmp_path):
    corpus = tmp_path / "corpus"
    here = filled(corpus, (tmp_path / "objects").as_uri())
    store: Any = here.log.store
    pointer = store._store.snapshot(ACME)  # as if it had been written to the store that is away
    raw = next(pointer.parts).replace((tmp_path / "objects").as_uri().encode(), away.encode())
    fence = store._store.lease(ACME, "test", LEASE_S)
    assert store._store.put_snapshot(ACME, fence, pointer.cursor, [raw])
    late = replica_of(corpus, away, "b")
    late.learn()
    assert late.held() == here.held()
    assert late.learner.wait_joined(0)
    assert late.learner.figures().num_failures >= 1
    late.finish(output([7, 7, 7]))
    late.pump()
    here.learn()
    assert ("plan", (7, 7, 7)) in here.held()
    late.clock.now_s += LEASE_S
    late.learn()  # looks for tombstones again, in vain
    assert late.held() == here.held()


def test_a_snapshot_that_fails_is_counted_and_the_old_one_stays(away, tmp_path):
    here = replica_of(tmp_path / "corpus", away, keeper={"every_s": 10.0})
    here.finish(output([1]))
    here.pump()
    here.keeper.step()
    here.clock.now_s += 20
    here.keeper.step()
    assert (here.keeper.num_written, here.keeper.num_failures) == (0, 1)
    assert here.log.snapshot("acme") is None


def test_calls_pause_after_a_failure(away):
    now_s = [0.0]
    folder = ObjectFolder(away, clock=lambda: now_s[0])
    with pytest.raises(SnapshotError, match=r"s3://bucket/away can't be used now"):
        folder.put("x", b"x")
    with pytest.raises(SnapshotError, match="pauses after a failure"):
        folder.list()
    now_s[0] += 60
    with pytest.raises(SnapshotError, match="can't be used now"):
        folder.list()


def test_a_slow_object_store_is_given_up(monkeypatch):
    for name in ("CALL_TIMEOUT_S", "_RETRY_S"):
        monkeypatch.setattr(f"agentspec.corpus.object_folder.{name}", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        use_s3(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(SnapshotError, match="can't be used now"):
            ObjectFolder("s3://bucket").get("x", 1)


def test_another_place_is_named(tmp_path):
    place, corpus = (tmp_path / "objects").as_uri(), tmp_path / "corpus"
    here = filled(corpus, place)
    for other in (None, (tmp_path / "elsewhere").as_uri()):
        late = replica_of(corpus, other, "b")
        store = late.log.store
        with pytest.raises(SnapshotError, match=f"'acme' is in '{place}': name this place"):
            store.snapshot(ACME)
        with pytest.raises(SnapshotError, match="name this place"):
            store.erase(ACME)
        with pytest.raises(SnapshotError, match="name this place"):
            late.forget_stage("none")
        late.learn()
        assert late.held() == here.held()
        assert late.learner.figures().num_failures >= 1
    assert here.log.snapshot("acme") is not None


def test_a_snapshot_beside_the_log_is_read_until_the_first_in_the_object_store(tmp_path):
    place, corpus = (tmp_path / "objects").as_uri(), tmp_path / "corpus"
    filled(corpus, None)
    here = replica_of(corpus, place, "b")
    assert len(joined(here.log)[0]) == 20
    assert here.keeper._writer.write("acme")
    assert len(joined(here.log)[0]) == len(outputs_in(place)) == 20


def test_a_forked_process_is_told(tmp_path):
    folder = ObjectFolder((tmp_path / "objects").as_uri())
    folder.put("x", b"x")
    folder._process = -1
    with pytest.raises(SnapshotError, match="fork"):
        folder.list()


# ---- erasure ----


@pytest.mark.parametrize("what", ["stage", "person", "tenant"])
def test_erased_outputs_are_in_no_object(what, place, location):
    here = filled(location, place)
    here.finish(output([50]))
    here.pump()
    assert here.keeper._writer.write("acme")
    before = outputs_in(place)
    if what == "stage":
        here.forget_stage("sql")
        gone = {one for one in before if one[0] % 2 and one != (50,)}
    elif what == "person":
        here.forget_subject(b"ann")
        gone = {(3,) * 4}
    else:
        here.forget_tenant("acme")
        gone = before
        assert names_in(place) == []
    assert gone
    assert outputs_in(place) == before - gone


@pytest.mark.parametrize("name", ["list", "delete"])
def test_an_erasure_fails_if_objects_can_not_be_deleted(name, tmp_path, monkeypatch):
    place = (tmp_path / "objects").as_uri()
    here = filled(tmp_path / "corpus", place)

    def away(*_: object) -> None:
        raise SnapshotError("away")

    erasures = (
        lambda: here.forget_stage("plan"),
        lambda: here.forget_subject(b"ann"),
        lambda: here.forget_tenant("acme"),
    )
    for erase in erasures:
        with monkeypatch.context() as patched:
            patched.setattr(ObjectFolder, name, away)
            with pytest.raises(CorpusError):
                erase()
        erase()
    assert names_in(place) == []


def test_an_erasure_reaches_what_a_killed_writer_left_on_a_disk(tmp_path):
    here = filled(tmp_path / "corpus", (tmp_path / "objects").as_uri())
    (written,) = filter(Path.is_file, (tmp_path / "objects").rglob("*"))
    unfinished = written.with_name("000001#1")  # obstore's name of it
    unfinished.write_bytes(written.read_bytes())
    here.forget_stage("plan")
    assert not unfinished.exists()
    assert not written.exists()


def test_an_erasure_waits_for_a_writer_in_the_middle_of_an_object(tmp_path, monkeypatch):
    place = (tmp_path / "objects").as_uri()
    here = filled(tmp_path / "corpus", place)
    (name, *_) = names_in(place)
    writer = open_store(str(tmp_path / "corpus"), snapshots=place)
    assert writer.lease(ACME, "writer", LEASE_S)

    def end_the_call(seconds: float) -> None:
        assert seconds == ObjectFolder.most_call_s
        ObjectFolder(place).put(name, b"late")

    monkeypatch.setattr(time, "sleep", end_the_call)
    here.log.store.erase(ACME)
    assert names_in(place) == []


def test_an_erasure_whose_lease_is_lost_says_so(tmp_path):
    here = filled(tmp_path / "corpus", (tmp_path / "objects").as_uri())
    store = here.log.store
    assert store.lease(ACME, "slow", 0.0)
    with closing(open_store(str(tmp_path / "corpus"), snapshots=(tmp_path / "objects").as_uri())) as other:
        assert other.lease(ACME, "other", LEASE_S)
    with pytest.raises(CorpusError, match="repeat it"):
        store.drop_previous(ACME)
    assert store.snapshot(ACME) is not None


# ---- places ----


@pytest.mark.parametrize(
    "url",
    [
        *("", "bucket", "s3:bucket", "s3://", "s3:///prefix", "http://host/x", "file://", "file://host/x"),
        *(
            "/tmp/x",
            "s3://key:secret@bucket/x",
            "az://box/x?sig=secret",
            "gs://bucket:80/x",
            "redis://host/0",
        ),
    ],
)
def test_other_urls_are_refused(url, tmp_path):
    with pytest.raises(ConfigError, match="is no place for snapshots: name s3://BUCKET/PREFIX") as caught:
        open_store(str(tmp_path / "corpus"), snapshots=url)
    assert urlsplit(url).path in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("url", ["az://box/x", "file:///proc/none"])
def test_a_place_that_can_not_be_used_is_named(url, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=f"snapshots can't be kept in '{url}': ."):
        ObjectFolder(url)


def test_reading_makes_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="gone"):
        ObjectFolder((tmp_path / "gone").as_uri(), only_reads=True)
    assert not (tmp_path / "gone").exists()
