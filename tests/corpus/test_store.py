"""What both stores do alike: log, retention, waiting, leases, snapshots, erasure."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentspec.corpus.batch import MOST_BATCH_BYTES
from agentspec.corpus.settings import without_password
from agentspec.corpus.store import START, Retention, Scope, open_store
from agentspec.errors import ConfigError, CorpusError
from tests.corpus.support.records import SCOPE

OTHERS = [
    Scope("tekken-v3", "globex"),
    Scope("llama-3", "acme"),
    Scope("tekken-v3", "acme:log"),
    Scope("tekken-v3", "acme}:log"),
    Scope("tekken-v3", "*"),
    Scope("tekken-v3", "acme/../globex+adapter ü"),
    Scope("tekken-v3:acme", "acme"),
]
ALL = 1 << 30
FOREVER_S = 600.0


def batches(store, scope=SCOPE, after=START, most_bytes=ALL) -> list[bytes]:
    return [entry.batch for entry in store.read(scope, after, most_bytes)]


def put(store, *parts: bytes, cursor: str = "7", scope: Scope = SCOPE) -> bool:
    fence = store.lease(scope, "holder", FOREVER_S)
    return fence is not None and store.put_snapshot(scope, fence, cursor, parts)


def kept_parts(store, scope=SCOPE) -> list[bytes]:
    snapshot = store.snapshot(scope)
    return list(snapshot.parts) if snapshot else []


# ---- the log ----


def test_batches_are_read_in_their_order(store):
    for number in range(40):
        store.publish(SCOPE, b"%d" % number)
    entries = store.read(SCOPE, START, ALL)
    assert [entry.batch for entry in entries] == [b"%d" % number for number in range(40)]
    for number in (0, 20, 39):
        assert batches(store, after=entries[number].cursor) == [b"%d" % n for n in range(number + 1, 40)]


def test_any_bytes_come_back(store):
    sent = [b"", bytes(range(256)), b"\r\n$-1\r\n", bytes(MOST_BATCH_BYTES)]
    for batch in sent:
        store.publish(SCOPE, batch)
    assert batches(store) == sent


def test_a_batch_that_is_too_large_is_refused(store):
    with pytest.raises(CorpusError, match=str(MOST_BATCH_BYTES)):
        store.publish(SCOPE, bytes(MOST_BATCH_BYTES + 1))
    with pytest.raises(CorpusError, match=str(MOST_BATCH_BYTES)):
        put(store, bytes(MOST_BATCH_BYTES + 1))
    assert store.stats() == {}


def test_reading_is_limited_in_bytes_but_never_empty(store):
    for _ in range(50):
        store.publish(SCOPE, bytes(100))
    assert len(batches(store, most_bytes=250)) == 2
    assert len(batches(store, most_bytes=2300)) == 23
    assert len(batches(store, most_bytes=1)) == 1


def test_the_end_is_behind_the_newest_entry(store):
    assert store.end(SCOPE) == START
    store.publish(SCOPE, b"old")
    end = store.end(SCOPE)
    assert batches(store, after=end) == []
    store.publish(SCOPE, b"new")
    assert batches(store, after=end) == [b"new"]


def test_scopes_are_apart(store):
    store.publish(SCOPE, b"mine")
    put(store, b"my snapshot")
    for other in OTHERS:
        assert (batches(store, other), store.end(other), store.marks(other).epoch) == ([], START, 0)
        assert store.snapshot(other) is None
    for number, other in enumerate(OTHERS):
        store.publish(other, b"%d" % number)
    for number, other in enumerate(OTHERS):
        assert batches(store, other) == [b"%d" % number]
        store.erase(other)
    assert batches(store) == [b"mine"]
    assert kept_parts(store) == [b"my snapshot"]
    assert store.marks(SCOPE).epoch == 0


def test_sizes(store):
    assert store.stats() == {}
    store.publish(SCOPE, bytes(30))
    store.publish(SCOPE, bytes(20))
    put(store, bytes(7), bytes(8))
    put(store, bytes(9))
    (stats,) = store.stats().values()
    assert (stats.num_entries, stats.num_bytes, stats.num_snapshot_bytes) == (2, 50, 24)
    assert stats.oldest_minute > 29_000_000
    assert 0 <= stats.snapshot_minute - stats.oldest_minute < 60


def test_scopes_without_outputs_are_remembered(store):
    assert store.scopes() == []
    for scope in (SCOPE, OTHERS[0]):
        store.publish(scope, b"x")
    store.rewrite(SCOPE, [(store.end(SCOPE), None)])
    assert SCOPE not in store.stats()
    assert store.scopes() == sorted([SCOPE, OTHERS[0]])


def test_two_stores_of_one_place_share_all(store, location):
    with closing(open_store(location)) as other:
        store.publish(SCOPE, b"one")
        other.publish(SCOPE, b"two")
        assert batches(store) == batches(other) == [b"one", b"two"]
        assert store.end(SCOPE) == other.end(SCOPE)


def test_threads_lose_nothing(store):
    def publish(name: int) -> None:
        for number in range(50):
            store.publish(SCOPE, b"%d %d" % (name, number))

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = store.read(SCOPE, START, ALL)
    assert len({entry.cursor for entry in entries}) == 200
    for name in range(4):
        own = [entry.batch for entry in entries if entry.batch.startswith(b"%d " % name)]
        assert own == [b"%d %d" % (name, number) for number in range(50)]


def test_a_closed_store_says_so(store):
    store.publish(SCOPE, b"x")
    store.close()
    with pytest.raises(CorpusError, match="closed"):
        store.publish(SCOPE, b"x")
    store.close()


# ---- retention ----


def test_the_oldest_beyond_the_budget_are_dropped(location):
    with closing(open_store(location, Retention(most_bytes=100))) as store:
        store.publish(OTHERS[0], bytes(90))
        for number in range(30):
            store.publish(SCOPE, b"%09d" % number)
        assert batches(store) == [b"%09d" % number for number in range(19, 30)]
        assert store.stats()[SCOPE].num_bytes == 99
        assert len(batches(store, OTHERS[0])) == 1


def test_the_log_continues_with_the_oldest_if_the_cursor_is_gone(location):
    with closing(open_store(location, Retention(most_bytes=20))) as store:
        store.publish(SCOPE, bytes(9))
        cursor = store.end(SCOPE)
        for number in range(5):
            store.publish(SCOPE, b"%09d" % number)
        assert batches(store, after=cursor) == [b"%09d" % 3, b"%09d" % 4]


def test_the_newest_entry_stays_whatever_its_size(location):
    with closing(open_store(location, Retention(most_bytes=10))) as store:
        for number in range(3):
            store.publish(SCOPE, b"%099d" % number)
            assert batches(store) == [b"%099d" % number]


@pytest.mark.parametrize("retention", [{"most_bytes": 0}, {"most_age_s": -1.0}])
def test_a_retention_keeps_something(retention):
    with pytest.raises(ConfigError, match="positive"):
        Retention(**retention)


# ---- waiting ----


def test_waiting_ends_at_once_if_there_is_something(store):
    store.publish(SCOPE, b"x")
    store.wait({OTHERS[0]: START, SCOPE: START}, FOREVER_S)


def test_waiting_ends_with_its_time(store):
    store.publish(SCOPE, b"x")
    store.wait({SCOPE: store.end(SCOPE), OTHERS[0]: START}, 0.05)
    store.wait({}, 0.01)
    store.wait({SCOPE: store.end(SCOPE)}, 0.0)


@pytest.mark.parametrize("is_other", [False, True], ids=["same store", "other store"])
def test_waiting_ends_with_a_new_entry(store, location, is_other):
    store.publish(SCOPE, b"old")
    cursors = {SCOPE: store.end(SCOPE), OTHERS[0]: START}
    waiter = threading.Thread(target=store.wait, args=(cursors, FOREVER_S))
    waiter.start()
    with closing(open_store(location)) as other:
        (other if is_other else store).publish(OTHERS[0], b"new")
        waiter.join(FOREVER_S / 10)
    assert not waiter.is_alive()


def test_waiting_ends_with_the_store(location):
    store = open_store(location)
    waiters = [
        threading.Thread(target=store.wait, args=(cursors, FOREVER_S)) for cursors in ({SCOPE: START}, {})
    ]
    for waiter in waiters:
        waiter.start()
    store.close()
    for waiter in waiters:
        waiter.join(FOREVER_S / 10)
        assert not waiter.is_alive()


def test_what_was_removed_wakes_no_waiter(store):
    store.publish(SCOPE, b"x")
    store.rewrite(SCOPE, [(store.end(SCOPE), None)])
    store.publish(OTHERS[0], b"x")
    store.erase(OTHERS[0])
    waiter = threading.Thread(target=store.wait, args=({SCOPE: START, OTHERS[0]: START}, FOREVER_S))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    store.publish(SCOPE, b"y")
    waiter.join(FOREVER_S / 10)
    assert not waiter.is_alive()


# ---- leases ----


def test_one_holder_at_a_time(store):
    first = store.lease(SCOPE, "one", FOREVER_S)
    assert first is not None
    assert store.lease(SCOPE, "two", FOREVER_S) is None
    again = store.lease(SCOPE, "one", FOREVER_S)
    assert again is not None
    assert again > first
    assert store.lease(OTHERS[0], "two", FOREVER_S) is not None


def test_a_lease_ends(store):
    first = store.lease(SCOPE, "one", 0.001)
    while (second := store.lease(SCOPE, "two", FOREVER_S)) is None:
        pass
    assert first is not None
    assert second > first


# ---- snapshots ----


def test_a_snapshot_comes_back(store):
    assert store.snapshot(SCOPE) is None
    assert put(store, b"best", bytes(MOST_BATCH_BYTES), b"last", cursor="12")
    snapshot = store.snapshot(SCOPE)
    assert snapshot is not None
    assert snapshot.cursor == "12"
    assert list(snapshot.parts) == [b"best", bytes(MOST_BATCH_BYTES), b"last"]


def test_an_empty_snapshot_is_one(store):
    assert put(store, cursor="3")
    snapshot = store.snapshot(SCOPE)
    assert snapshot is not None
    assert (snapshot.cursor, list(snapshot.parts)) == ("3", [])


def test_a_reader_may_end_what_was_replaced_once(store):
    put(store, b"a1", b"a2")
    reader, late = store.snapshot(SCOPE).parts, store.snapshot(SCOPE).parts
    assert next(reader) == next(late) == b"a1"
    put(store, b"b1", b"b2")
    assert kept_parts(store) == [b"b1", b"b2"]
    assert next(reader) == b"a2"
    put(store, b"c1")
    with pytest.raises(CorpusError, match="replaced"):
        next(late)


def test_an_older_fence_is_refused(store):
    old = store.lease(SCOPE, "one", FOREVER_S)
    new = store.lease(SCOPE, "one", FOREVER_S)
    assert not store.put_snapshot(SCOPE, old, "1", [b"old"])
    assert store.snapshot(SCOPE) is None
    assert store.put_snapshot(SCOPE, new, "1", [b"new"])
    assert not store.put_snapshot(OTHERS[0], new, "1", [b"no lease"])


def test_a_lease_or_an_erasure_meanwhile_stops_a_snapshot(store):
    def interrupted_by(change) -> Iterator[bytes]:
        yield b"part"
        change()
        yield b"part"

    put(store, b"kept")
    fence = store.lease(SCOPE, "holder", FOREVER_S)
    taken = interrupted_by(lambda: store.lease(SCOPE, "holder", FOREVER_S))
    assert not store.put_snapshot(SCOPE, fence, "1", taken)
    assert kept_parts(store) == [b"kept"]
    fence = store.lease(SCOPE, "holder", FOREVER_S)
    assert not store.put_snapshot(SCOPE, fence, "1", interrupted_by(lambda: store.erase(SCOPE)))
    assert store.snapshot(SCOPE) is None
    assert store.stats() == {}


def test_a_snapshot_that_fails_leaves_the_old_one(store):
    def failing() -> Iterator[bytes]:
        yield b"part"
        raise RuntimeError("no more")

    put(store, b"kept")
    fence = store.lease(SCOPE, "holder", FOREVER_S)
    with pytest.raises(RuntimeError, match="no more"):
        store.put_snapshot(SCOPE, fence, "1", failing())
    assert kept_parts(store) == [b"kept"]
    assert store.stats()[SCOPE].num_snapshot_bytes == 4


def test_parts_may_be_read_from_the_store_meanwhile(store):
    store.publish(SCOPE, b"x")
    fence = store.lease(SCOPE, "holder", FOREVER_S)
    parts = (entry.batch for _ in range(2) for entry in store.read(SCOPE, START, ALL))
    assert store.put_snapshot(SCOPE, fence, store.end(SCOPE), parts)
    assert kept_parts(store) == [b"x", b"x"]


# ---- erasure ----


def test_an_erased_scope_begins_anew(store):
    store.publish(SCOPE, b"x")
    cursor = store.end(SCOPE)
    put(store, b"a")
    put(store, b"b")
    fence = store.lease(SCOPE, "holder", FOREVER_S)
    wrapped = store.wrapped_key(SCOPE, b"first")
    store.erase(SCOPE)
    assert (batches(store), store.snapshot(SCOPE), store.stats()) == ([], None, {})
    epoch = store.marks(SCOPE).epoch
    assert epoch > 0
    assert store.wrapped_key(SCOPE, b"second") == b"second" != wrapped
    new_fence = store.lease(SCOPE, "someone else", FOREVER_S)
    assert new_fence is not None
    assert new_fence > fence
    store.publish(SCOPE, b"y")
    assert batches(store, after=cursor) == [b"y"]
    store.erase(SCOPE)
    assert store.marks(SCOPE).epoch > epoch


def test_nothing_is_published_from_before_an_erasure(store):
    assert store.publish(SCOPE, b"x", epoch=0)
    store.erase(SCOPE)
    assert not store.publish(SCOPE, b"late", epoch=0)
    assert batches(store) == []
    assert store.publish(SCOPE, b"new", epoch=store.marks(SCOPE).epoch)
    assert store.publish(SCOPE, b"any")
    assert batches(store) == [b"new", b"any"]


def test_rewriting_replaces_entries(store):
    for number in range(6):
        store.publish(SCOPE, b"%d" % number)
    put(store, b"before")
    put(store, b"after")
    entries = store.read(SCOPE, START, ALL)
    changes = (
        (entry.cursor, b"" if number == 4 else None)
        for number, entry in enumerate(entries)
        if number % 2 == 0
    )
    store.rewrite(SCOPE, sorted([(entries[1].cursor, b"rest of one"), *changes]))
    store.drop_previous(SCOPE)
    assert batches(store) == [b"rest of one", b"3", b"", b"5"]
    assert batches(store, after=entries[2].cursor) == [b"3", b"", b"5"]
    stats = store.stats()[SCOPE]
    assert stats.num_bytes == sum(map(len, batches(store)))
    assert stats.num_snapshot_bytes == len(b"after")
    assert kept_parts(store) == [b"after"]


def test_what_was_dropped_meanwhile_is_not_rewritten(store):
    store.publish(SCOPE, b"old")
    old = store.end(SCOPE)
    store.erase(SCOPE)
    store.rewrite(SCOPE, [(old, b"rest")])
    assert batches(store) == []


# ---- keys ----


def test_a_key_is_looked_up_without_making_one(store):
    assert store.wrapped_key(SCOPE) is None
    assert store.wrapped_key(SCOPE, b"one") == b"one"
    assert store.wrapped_key(SCOPE) == b"one"
    store.erase(SCOPE)
    assert store.wrapped_key(SCOPE) is None


def test_the_first_wrapped_key_stays(store, location):
    assert store.wrapped_key(SCOPE, b"\0one") == b"\0one"
    with closing(open_store(location)) as other:
        assert other.wrapped_key(SCOPE, b"two") == b"\0one"
    assert store.wrapped_key(OTHERS[0], b"three") == b"three"


# ---- reading alone ----


def test_a_store_that_is_only_read(store, location):
    store.publish(SCOPE, b"x")
    put(store, b"part")
    wrapped = store.wrapped_key(SCOPE, b"key")
    with closing(open_store(location, only_reads=True)) as reader:
        assert batches(reader) == [b"x"]
        store.publish(SCOPE, b"y")
        assert batches(reader) == [b"x", b"y"]
        assert kept_parts(reader) == [b"part"]
        assert reader.wrapped_key(SCOPE) == wrapped
        assert reader.stats() == store.stats()


# ---- places ----


@pytest.mark.parametrize(
    "location",
    ["", "http://host/x", "memcached://user:secret@host", "redis://host:99999", "redis://h:no/1"],
)
def test_other_places_are_refused(location):
    with pytest.raises(ConfigError, match=r"(?i)redis") as caught:
        open_store(location)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("zstandard", "batch"),
        ("redis", "redis_store"),
        ("cryptography", "encryption"),
    ],
)
def test_a_missing_package_is_named_with_its_command(package, module):
    code = f"""
import sys
sys.modules[{package!r}] = None
from agentspec.errors import ConfigError
try:
    import agentspec.corpus.{module}
except ConfigError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"needs {package}" in run.stdout
    assert "pip install 'agentspec-serving[corpus]'" in run.stdout


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/0", "redis://user@host:1/0"),
        ("rediss://:secret@host", "rediss://@host"),
        ("redis://user:se@cret@host", "redis://user@host"),
        ("redis://host/0?password=secret", "redis://host/0"),
        ("redis://host:1", "redis://host:1"),
        ("redis://user:secret@[::1", "redis://..."),
        ("redis://user:sec/ret@host/0", "redis://..."),
        ("redis://user:sec?ret@host/0", "redis://..."),
        ("redis://user:sec#ret@host/0", "redis://..."),
        ("redis://host/0?password=sec@ret", "redis://..."),
        ("redis://host:secret", "redis://..."),
        ("redis://secret@host", "redis://...@host"),
        ("redis:user:secret@host", "redis:..."),
        ("redis:/user:secret@host", "redis:..."),
        ("s3://secret@bucket", "s3://...@bucket"),
        ("s3://key:secret@bucket/a", "s3://...@bucket/a"),
        ("s3://bucket/a?token=secret", "s3://bucket/a"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("/var/lib/a@b", "/var/lib/a@b"),
    ],
)
def test_passwords_are_not_shown(url, shown):
    assert without_password(url) == shown
