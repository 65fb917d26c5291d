from __future__ import annotations

import threading

import pytest

from agentspec.corpus.batch import ForgetSubject, Output
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import Replica, output, stored

EVERY_S = 300.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def finish(replica: Replica, number: int) -> None:
    replica.finish(output([number]))
    replica.pump()


def later(replica: Replica, seconds: float = EVERY_S) -> int:
    replica.clock.now_s += seconds
    before = replica.keeper.num_written
    replica.keeper.step()
    return replica.keeper.num_written - before


def test_a_snapshot_is_written_at_times_if_there_is_something_new(store):
    replica = Replica(store)
    finish(replica, 1)
    assert later(replica) == 0  # it has just started
    assert later(replica, 200.0) == 0
    assert later(replica, 100.0) == 1
    assert later(replica) == 0  # nothing new
    finish(replica, 2)
    assert later(replica, 2 * EVERY_S) == 1


def test_one_process_writes_for_all(store):
    replicas = [Replica(store, name) for name in "abc"]
    finish(replicas[0], 1)
    written = []
    for number in range(5):
        finish(replicas[1], 10 + number)
        written.append(sum(later(replica, EVERY_S) for replica in replicas))
        store.now_s += EVERY_S
    assert written[0] == 0
    assert set(written[1:]) <= {0, 1}
    assert sum(written) >= 2


def test_a_failing_store_is_counted(store):
    replica = Replica(store)
    store.is_away = True
    replica.keeper.step()
    assert replica.keeper.num_failures == 1


def test_an_erasure_that_fails_is_repeated(store):
    replica = Replica(store)
    replica.finish(output([1], subject=b"ann"))
    replica.pump()
    replica.keeper.repeat("acme", [ForgetSubject(b"ann")], 0)
    store.is_away = True
    replica.keeper.step()
    store.is_away = False
    replica.keeper.step()
    replica.learn()
    assert replica.held() == {}


def test_the_thread_ends(store):
    others = set(threading.enumerate())
    replica = Replica(store)
    replica.keeper.start()
    replica.keeper.close(60.0)
    assert "agentspec-snapshots" not in {thread.name for thread in set(threading.enumerate()) - others}


def test_an_engine_that_ends_repeats_what_it_still_has_to_erase(store):
    late, other = Replica(store, "a"), Replica(store, "b")
    late.finish(output([1], "a"))
    other.forget_stage("a")
    late.pump()  # behind the tombstone in the log
    late.learn()
    late.publisher.close()
    late.keeper.close()
    assert not [one for batch in stored(late.log, "acme") for one in batch.records if isinstance(one, Output)]
    other.learn()
    assert other.held() == {}
