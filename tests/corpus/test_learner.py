from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from agentspec import Forest, StageKey
from agentspec.corpus.batch import Batch, ForgetSubject, Output, encode
from agentspec.corpus.snapshots import SnapshotContent
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.draft import Origin
from agentspec.forest.sessions import session_hash
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import Clock, NotedTrees, Replica, output, tree_outputs

TIMEOUT_S = 60.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def put(replica: Replica, *batches: Batch, tenant: str = "acme") -> None:
    for batch in batches:
        replica.log.store.publish(replica.log.scope(tenant), replica.log.encode(tenant, batch))


def batch_of(first: int, *records, origin: bytes = b"z" * 16) -> Batch:
    return Batch(origin, first, records)


def long_output(seed: int) -> Output:
    return output(np.random.default_rng(seed).integers(0, 100, 100_000))


def test_an_output_of_one_process_drafts_on_another(tmp_path):
    forests = [Forest(), Forest()]
    stores = [SqliteStore(tmp_path / "corpus") for _ in forests]
    here, there = (Replica(*pair) for pair in zip(stores, "ab", forests, strict=True))
    here.finish(output([20, 21, 22, 23]))
    here.pump()
    there.learn()
    there.trees.start("request", StageKey.parse("plan", "acme"), np.array([9], np.int32))
    ((draft,),) = [there.trees.step([("request", np.array([20, 21], np.int32))])]
    assert draft.token_ids.tolist() == [22, 23]
    for one in stores:
        one.close()


def test_own_outputs_are_not_learned_again(store):
    replica = Replica(store)
    replica.finish(output([1, 2]))
    replica.sync()
    assert replica.held() == {("plan", (1, 2)): 1}
    assert replica.learner.figures().num_outputs == 0


def test_every_repetition_is_learned(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    for _ in range(4):
        here.finish(output([1, 2]))
        here.sync()
        there.sync()
    assert there.held() == {("plan", (1, 2)): 4}


def test_tenants_do_not_mix(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output([1, 2], tenant="acme"))
    here.finish(output([3, 4], tenant="globex"))
    here.pump()
    there.learn()
    assert there.held("acme") == {("plan", (1, 2)): 1}
    assert there.held("globex") == {("plan", (3, 4)): 1}


def test_replayed_batches_change_nothing(store):
    replica = Replica(store)
    batches = [batch_of(n, output([n])) for n in range(6)]
    put(replica, *batches)
    replica.learn()
    before = replica.held()
    put(replica, *reversed(batches), batch_of(2, output([2]), output([3])))
    replica.learn()
    assert replica.held() == before
    put(replica, batch_of(4, output([4]), output([5]), output([6])))
    replica.learn()
    assert replica.held() == {**before, ("plan", (6,)): 1}


def test_gaps_are_counted_until_they_are_filled(store):
    replica = Replica(store)
    put(replica, batch_of(0, output([0])), batch_of(3, output([3])))
    replica.learn()
    assert replica.learner.figures().num_missing == 2
    put(replica, batch_of(1, output([1]), output([2])))
    replica.learn()
    assert replica.learner.figures().num_missing == 0
    assert len(replica.held()) == 4


def test_what_can_not_be_used_is_counted(store):
    replica = Replica(store)
    scope = replica.log.scope("acme")
    torn = encode(batch_of(0, output([1])))[:-1]
    for data in (torn, b"", b"nonsense" * 20):
        store.publish(scope, data)
    put(replica, batch_of(5, output([1, 100]), output([1, 99])))
    replica.learn()
    assert replica.learner.figures().num_damaged == 4
    assert replica.held() == {("plan", (1, 99)): 1}


def test_another_vocabulary_is_not_read(store):
    replica = Replica(store)
    other = replica.log.scope("acme")._replace(vocabulary="other")
    store.publish(other, encode(batch_of(0, output([1]))))
    replica.learn()
    assert replica.held() == {}


def test_an_erased_tenant_is_evicted_and_learned_anew(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output([1]))
    here.finish(output([2], tenant="globex"))
    here.sync()
    there.sync()
    here.forget_tenant("acme")
    here.finish(output([3]))
    here.pump()
    for replica in (here, there):
        replica.learn()
    assert there.held() == here.held() == {("plan", (3,)): 1}
    assert there.held("globex") == {("plan", (2,)): 1}
    assert set(there.trees.evicted) == {"acme"}


def test_a_learner_too_far_behind_skips_to_the_newest(store):
    replica = Replica(store, learner={"most_lag_s": 10.0})
    put(replica, batch_of(0, output([0])))
    replica.learn()
    put(replica, *(batch_of(n, long_output(n)) for n in range(1, 40)))
    replica.learner.step()
    assert replica.learner.figures().lag_s == 0
    replica.clock.now_s += 5.0
    assert replica.learner.figures().lag_s == 5.0
    replica.learner.step()
    replica.clock.now_s += 6.0
    replica.learner.step()
    put(replica, batch_of(40, output([40])))
    replica.learn()
    held = replica.held()
    assert ("plan", (40,)) in held
    figures = replica.learner.figures()
    assert 0 < figures.num_dropped == 41 - len(held)
    assert (figures.num_missing, figures.lag_s) == (0, 0)


def test_erasures_among_the_skipped_entries_are_found_in_the_snapshot(store):
    here, there = Replica(store, "a"), Replica(store, "b", learner={"most_lag_s": 1.0}, memory_bytes=1 << 26)
    here.finish(output([1], subject=b"ann"))
    here.pump()
    there.learn()
    put(there, *(batch_of(n, long_output(n)) for n in range(1, 40)))
    here.forget_subject(b"ann")
    there.learner.step()
    there.clock.now_s += 5.0
    there.learn()
    assert ("plan", (1,)) not in there.held()
    put(there, batch_of(40, output([40])))
    there.learn()
    assert there.learner.figures().num_dropped > 0


def test_entries_lost_with_an_erasure_are_noticed(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output([1], subject=b"ann"))
    here.sync()
    there.learn()
    here.forget_subject(b"ann")
    store.lose(there.log.scope("acme"), 10)
    here.finish(output([2]))
    here.pump()
    there.learn()
    assert there.held() == {("plan", (2,)): 1}


def test_a_store_that_fails_for_a_while_is_read_later(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output([1]))
    here.pump()
    there.learn()
    here.finish(output([2]))
    here.pump()
    store.is_away = True
    there.learn()
    assert there.learner.figures().num_failures > 0
    store.is_away = False
    there.learn()
    assert len(there.held()) == 2


def test_a_joining_engine_learns_the_snapshot_and_the_log(store):
    here, clock = Replica(store, "a"), Clock()
    for number in range(5):
        here.finish(output([number]))
        here.sync()
    assert here.keeper._writer.write("acme")
    store.lose(here.log.scope("acme"), 5)
    here.finish(output([5]))
    here.pump()
    joined = Replica(store, "c", clock=clock)
    joined.learn()
    assert joined.held() == here.held()
    assert joined.trees.origins == {Origin.SNAPSHOT: 5, Origin.FLEET: 1}
    assert here.trees.origins == {Origin.LOCAL: 6}
    assert joined.learner.figures().num_missing == 0


def test_an_engine_has_joined_once_all_that_the_store_held_is_learned(store):
    here = Replica(store, "a")
    for number in range(5):
        here.finish(output([number]))
    here.sync()
    joined, late = Replica(store, "b"), Replica(store, "c")
    assert not joined.learner.wait_joined(0)
    joined.learn()
    assert joined.learner.wait_joined(0)
    assert joined.held() == here.held()
    store.is_away = True
    late.learn()
    assert not late.learner.wait_joined(0)
    store.is_away = False


def test_a_joining_engine_learns_the_most_useful_within_its_budget(store):
    here = Replica(store, "a")
    put(here, batch_of(0, *(output([number] * 10, uses=1 + number) for number in range(6))))
    assert here.keeper._writer.write("acme")
    joined = Replica(store, "b", learner={"join_bytes": 100})
    joined.learn()
    assert joined.held() == {("plan", (5,) * 10): 6, ("plan", (4,) * 10): 5}


def test_a_subject_is_forgotten_exactly_in_real_trees(store):
    forests = [Forest(), Forest()]
    here, there = (Replica(store, name, forest) for name, forest in zip("ab", forests, strict=True))
    here.finish(output([1, 2, 3], "a/b", subject=b"ann"))
    for replica in (here, there):
        replica.finish(output([1, 2, 4], "a/b"))
        replica.pump()
    for replica in (here, there):
        replica.learn()
    here.forget_subject(b"ann")
    for replica in (here, there):
        replica.learn()
        for held in tree_outputs(replica.trees).values():
            assert held == [(1, 2, 4)]
        replica.trees.check_integrity()


def test_a_stage_is_forgotten_with_all_below_it(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    for number, stage in enumerate(("a", "a/b", "ab", "c")):
        here.finish(output([number, 1], stage))
        there.finish(output([number, 2], stage))
    for replica in (here, there, here):
        replica.sync()
    here.forget_stage("a")
    for replica in (here, there):
        replica.learn()
        assert {stage for stage, _ in replica.held()} == {"ab", "c"}
        assert replica.trees.evicted == []
        assert replica.trees.models_forgotten == [("acme", ("a",))]


def test_new_outputs_of_a_forgotten_stage_stay(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output([1]))
    here.finish(output([9], "act"))
    here.sync()
    there.sync()
    here.forget_stage("plan")
    for replica in (here, there):
        replica.sync()
    here.finish(output([2]))
    here.forget_stage("act")  # not all of it is remembered: the trees are learned anew
    for _ in range(3):
        for replica in (here, there):
            replica.sync()
    joined = Replica(store, "c")
    joined.learn()
    for replica in (here, there, joined):
        assert replica.held() == {("plan", (2,)): 1}


def test_an_erasure_is_repeated_for_records_that_came_too_late(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    there.finish(output([0]))
    there.sync()
    here.sync()
    late = output([1], subject=b"ann")
    there.finish(late)
    here.forget_subject(b"ann")
    there.pump()
    here.learn()
    assert ("plan", (1,)) in here.held()
    for replica in (there, here):
        replica.sync()
    for replica in (here, there):
        replica.learn()
        assert replica.held() == {("plan", (0,)): 1}


def test_a_tombstone_of_a_person_that_is_not_held_does_nothing(store):
    replica = Replica(store)
    put(replica, batch_of(0, output([1])), batch_of(1, ForgetSubject(b"ann")))
    replica.learn()
    assert replica.trees.evicted == []
    assert len(replica.held()) == 1


def test_the_thread_learns_and_ends(store):
    learned = threading.Event()

    class Trees(NotedTrees):
        def learn(self, *args) -> None:
            super().learn(*args)
            learned.set()

    here = Replica(store, "a")
    here.finish(output([1]))
    here.pump()
    there = Replica(store, "b", Trees(), clock=Clock())
    there.learner.start()
    assert learned.wait(TIMEOUT_S)
    there.learner.close(TIMEOUT_S)
    assert "agentspec-learner" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "publisher", [{"is_shared": lambda path: False}, {"queue_bytes": 0}], ids=["not shared", "dropped"]
)
def test_a_tenant_is_erased_where_nothing_of_it_was_sent(store, publisher):
    here = Replica(store, "a", joined=(), publisher=publisher)
    for number in range(16):  # so many are counted together
        here.finish(output([number]))
    here.pump()
    store.erase(here.log.scope("acme"))
    here.learn()
    assert here.held() == {}


def test_an_own_output_that_came_too_late_is_erased_from_a_snapshot_that_holds_it(store):
    here, there = Replica(store, "a", memory_bytes=0), Replica(store, "b")
    here.learn()
    here.finish(output([1], "a"))  # not remembered: the erasure begins anew
    there.forget_stage("a")
    here.pump()  # behind the tombstone
    there.forget_stage("c")  # its snapshot merges the late output
    for replica in (here, there) * 3:
        replica.sync()
    assert (here.held(), there.held()) == ({}, {})
    joined = Replica(store, "c")
    joined.learn()
    assert joined.held() == {}


def test_outputs_of_a_session_are_learned_as_such(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    run = session_hash("acme", "run")
    here.finish(output([1, 2], session=run))
    here.finish(output([3, 4]))
    here.pump()
    there.learn()
    assert there.trees.sessions == [(run, [1, 2])]


def test_an_engine_that_joins_learns_sessions_of_late(store):
    run, minute = session_hash("acme", "run"), int(time.time()) // 60
    merged = SnapshotContent(1 << 20, now_minute=1000, most_age_minutes=2000)
    old, late = {"minute": 900, "session": run}, {"minute": 999, "session": run}
    other = session_hash("acme", "other")
    sent = [output([1], **late), output([2], **old), output([3], minute=998, session=other)]
    again = [output([4], **old), output([4], **{**late, "session": other}), output([5], uses=10, **old)]
    merged.add(batch_of(0, *sent, *again))
    records = [record for batch in merged.batches() for record in batch.records]
    assert [(one.tokens.tolist(), one.session) for one in records] == [
        *(([5], b""), ([2], b"")),  # the most used first
        *(([3], other), ([1], run), ([4], other)),  # as they came
    ]
    here, later = Replica(store, "a"), Replica(store, "b", joined=())
    here.finish(output([1, 2], minute=minute, session=run))
    here.pump()
    here.keeper._writer.write("acme")
    later.learn()
    assert later.trees.origins[Origin.SNAPSHOT] == 1
    assert later.trees.sessions == [(run, [1, 2])]
