from __future__ import annotations

import logging
import threading

import pytest

from agentspec.corpus.batch import Erased, ForgetStage, ForgetSubject, Output
from agentspec.corpus.encryption import KeyRing
from agentspec.corpus.store import Scope
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import VOCABULARY, Replica, output, stored

TIMEOUT_S = 60.0
TENANTS = ("acme", "globex")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def sent(replica: Replica, tenant: str = "acme") -> list[list[int]]:
    records = [record for batch in stored(replica.log, tenant) for record in batch.records]
    return [record.tokens.tolist() for record in records if isinstance(record, Output)]


def test_an_output_is_sent_at_once_and_the_next_ones_together(store):
    replica = Replica(store)
    replica.publisher.publish(output([1]))
    assert replica.publisher.pump() == float("inf")
    for number in (2, 3):
        replica.publisher.publish(output([number]))
    assert replica.publisher.pump() == pytest.approx(0.25)
    assert sent(replica) == [[1]]
    replica.pump(0.25)
    assert sent(replica) == [[1], [2], [3]]
    assert [(batch.first, len(batch.records)) for batch in stored(replica.log, "acme")] == [(0, 1), (1, 2)]


def test_tenants_have_batches_and_numbers_of_their_own(store):
    replica = Replica(store)
    for tenant in ("acme", "globex", "acme"):
        replica.publisher.publish(output([1, 2], tenant=tenant, stage="s" + tenant))
        replica.publisher.publish(output([3], tenant=tenant))
    replica.pump()
    assert sent(replica, "acme") == [[1, 2], [3]] * 2
    assert sent(replica, "globex") == [[1, 2], [3]]
    assert [batch.first for tenant in ("acme", "globex") for batch in stored(replica.log, tenant)] == [0, 0]


def test_figures(store):
    replica = Replica(store)
    for _ in range(3):  # repetitions are sent too
        replica.publisher.publish(output([1, 2, 3]))
    replica.pump(1.0)
    assert sent(replica) == [[1, 2, 3]] * 3
    figures = replica.publisher.figures()
    assert (figures.num_published, figures.num_skipped, figures.num_dropped) == (3, 0, 0)
    assert figures.num_bytes > 0
    assert figures.since_success_s == 0


def test_while_the_store_fails_the_oldest_outputs_are_dropped(store, caplog):
    replica = Replica(store, publisher={"queue_bytes": 4100})
    store.is_away = True
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            replica.publisher.publish(output([number]))
            replica.pump(0.01)
        calls = store.num_calls
        assert replica.publisher.pump() > 0  # it pauses
        assert store.num_calls == calls
        store.is_away = False
        replica.pump(60.0)
        replica.pump()
    assert sent(replica)[-1] == [49]
    figures = replica.publisher.figures()
    assert figures.num_dropped == 50 - len(sent(replica))
    assert 0 < len(sent(replica)) < 30
    assert figures.num_failures >= 1
    assert len(caplog.records) == 2


def test_a_batch_whose_answer_was_lost_is_sent_again_with_its_numbers(store):
    replica = Replica(store)
    store.num_failing = 2
    replica.publisher.publish(output([1]))
    replica.pump()
    replica.publisher.publish(output([2]))
    for _ in range(4):
        replica.pump(60.0)
    assert [batch.first for batch in stored(replica.log, "acme")] == [0, 0, 0, 1]


def test_a_key_that_can_not_be_used_stops_its_tenant_alone(store, caplog):
    KeyRing(store, bytes(32)).key(Scope(VOCABULARY, "globex"))
    replica = Replica(store, keys=KeyRing(store, bytes(range(32))))
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            replica.publisher.publish(output([number], tenant="globex"))
            replica.publisher.publish(output([number]))
            replica.pump()
    assert len(sent(replica)) == 3
    assert replica.publisher.figures().num_dropped == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("outputs of tenant globex are not shared: the operator's key does not open")


def test_what_is_left_is_sent_at_the_end(store):
    replica = Replica(store)
    for number in range(2):
        replica.publisher.publish(output([number]))
        replica.publisher.pump()
    replica.publisher.close()
    assert sent(replica) == [[0], [1]]


def test_an_output_of_a_new_tenant_is_sent_at_the_end(store):
    for tenant in ("acme", "bolt"):
        replica = Replica(store, tenant)
        replica.publisher.publish(output([1], tenant="new"))
        if tenant == "bolt":
            replica.log.store.erase(replica.log.scope("new"))  # before or after the output: it is not known
        replica.publisher.close()
        assert len(stored(replica.log, "new")) == (tenant == "acme")


def test_the_thread_sends_and_ends(store):
    others = set(threading.enumerate())
    replica = Replica(store)
    replica.publisher.start()
    replica.publisher.publish(output([1]))
    store.wait({replica.log.scope("acme"): ""}, TIMEOUT_S)
    assert sent(replica) == [[1]]
    replica.publisher.publish(output([2]))
    replica.publisher.close(TIMEOUT_S)
    assert sent(replica) == [[1], [2]]
    assert "agentspec-publisher" not in {thread.name for thread in set(threading.enumerate()) - others}


def test_a_store_that_is_away_does_not_hold_up_the_end(store):
    replica = Replica(store)
    store.is_away = True
    replica.publisher.start()
    replica.publisher.publish(output([1]))
    replica.publisher.close(TIMEOUT_S)
    assert replica.publisher.figures().num_published == 0


def test_an_erasure_takes_back_what_was_not_sent(store):
    replica = Replica(store)
    mine, other = output([1], subject=b"ann"), output([2])
    replica.publisher.publish(mine)
    replica.pump()
    store.is_away = True
    numbered = output([3], subject=b"ann")
    for one in (numbered, other):
        replica.publisher.publish(one)
    replica.pump()
    queued = output([4], subject=b"ann")
    replica.publisher.publish(queued)
    assert replica.publisher.withdraw("acme", ForgetSubject(b"ann")) == 3
    taken = replica.memory.take("acme", ForgetSubject(b"ann")) or ()
    assert [one.digest for one in taken] == [one.digest for one in (mine, numbered, queued)]
    store.is_away = False
    replica.pump(60.0)
    assert stored(replica.log, "acme")[1].records[0] == Erased()
    assert sent(replica) == [[1], [2]]


def test_an_erasure_does_not_know_all_that_was_dropped(store):
    replica = Replica(store, publisher={"queue_bytes": 0})
    for number in range(16):  # so many are counted together
        replica.publisher.publish(output([number], subject=b"ann"))
    replica.publisher.withdraw("acme", ForgetSubject(b"ann"))
    assert replica.memory.take("acme", ForgetSubject(b"ann")) is None


def test_nothing_from_before_its_erasure_is_sent_for_a_tenant(store):
    replica = Replica(store)
    replica.publisher.publish(output([1]))
    replica.pump()
    replica.publisher.publish(output([2]))
    replica.publisher.publish(output([2], tenant="globex"))
    store.erase(replica.log.scope("acme"))
    replica.pump()
    assert sent(replica) == []
    assert sent(replica, "globex") == [[2]]
    replica.publisher.publish(output([3]))
    replica.pump()
    assert sent(replica) == [[3]]


def test_what_waits_for_a_store_that_is_away_since_the_start_is_bounded(store):
    replica = Replica(store, joined=(), publisher={"queue_bytes": 4000})
    for number in range(60):
        replica.publisher.publish(output([number] * 10, tenant=TENANTS[number % 3 == 0]))
        replica.pump(0.01)
    num_dropped = replica.publisher.figures().num_dropped
    assert 10 < num_dropped < 60
    num_held = [len(replica.memory.take(tenant, ForgetStage(("plan",))) or ()) for tenant in TENANTS]
    assert num_held == [40, 20]  # the trees hold what was dropped
    again = Replica(store, "b", joined=(), publisher={"queue_bytes": 4000})
    for number in range(60):
        again.publisher.publish(output([number] * 10))
        again.pump(0.01)
    again.publisher.enter_epoch("acme", 0)
    again.pump()
    num_lost = again.publisher.figures().num_dropped
    assert sent(again) == [[number] * 10 for number in range(num_lost, 60)]


def test_many_tenants_gather_for_longer(store):
    replica = Replica(store, joined=[f"t{number}" for number in range(16)])
    for turn in range(2):
        for number in range(16):
            replica.publisher.publish(output([turn], tenant=f"t{number}"))
        wait_s = replica.publisher.pump()
    assert wait_s == pytest.approx(2 * MemoryStore.window_s)
    replica.pump(wait_s)
    assert sent(replica, "t3") == [[0], [1]]
    replica.clock.now_s += 11.0  # the others are silent
    replica.publisher.publish(output([2], tenant="t3"))
    replica.pump(0.0)
    replica.publisher.publish(output([3], tenant="t3"))
    assert replica.publisher.pump() == pytest.approx(MemoryStore.window_s)
