from __future__ import annotations

import pytest

from agentspec.corpus.batch import Batch, ForgetStage, ForgetSubject, Output
from agentspec.corpus.snapshots import SnapshotContent, SnapshotWriter
from agentspec.errors import CorpusError
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import Replica, output, stored

DAY = 1440
NOW = 100 * DAY
ORIGIN = b"a" * 16


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def content(most_bytes: int = 1 << 20, most_age_minutes: int = 7 * DAY) -> SnapshotContent:
    return SnapshotContent(most_bytes, NOW, most_age_minutes)


def outputs(merged: SnapshotContent) -> list[Output]:
    return [record for batch in merged.batches() for record in batch.records if isinstance(record, Output)]


def fresh(tokens, **more) -> Output:
    return output(tokens, **{"minute": NOW, **more})


def test_equal_outputs_are_merged():
    merged = content()
    one = fresh([1, 2], uses=3, minute=NOW - 9)
    merged.add(Batch(ORIGIN, 0, (one, fresh([1, 2], minute=NOW - 5))))
    (only,) = outputs(merged)
    assert (only.tokens.tolist(), only.uses, only.minute) == ([1, 2], 4, NOW - 5)


def test_what_a_snapshot_has_counted_counts_once_and_what_it_dropped_is_there():
    merged = content()
    merged.add(Batch(ORIGIN, 0, (fresh([1], uses=5),)), is_snapshot=True)
    merged.add(Batch(ORIGIN, 0, (fresh([1]), fresh([2]))), is_merged=True)
    merged.add(Batch(ORIGIN, 2, (fresh([1]),)))
    assert {tuple(one.tokens.tolist()): one.uses for one in merged} == {(1,): 6, (2,): 1}


def test_uses_have_a_limit():
    merged = content()
    merged.add(Batch(ORIGIN, 0, (fresh([1], uses=65_000), fresh([1], uses=65_000))))
    assert [one.uses for one in outputs(merged)] == [65_535]


def test_repeated_batches_count_once():
    merged = content()
    batch = Batch(ORIGIN, 0, (fresh([1]), fresh([2])))
    for _ in range(3):
        merged.add(batch)
    assert [one.uses for one in outputs(merged)] == [1, 1]


def test_the_most_used_and_newest_come_first_within_the_budget():
    merged = content(most_bytes=12)
    ages = {1: (1, 0), 2: (8, 1), 3: (8, 2), 4: (1, 3), 5: (64, 7)}
    merged.add(
        Batch(ORIGIN, 0, tuple(fresh([n], uses=u, minute=NOW - d * DAY) for n, (u, d) in ages.items()))
    )
    assert [one.tokens.tolist() for one in outputs(merged)] == [[2], [3], [1]]


def test_old_outputs_are_left_out():
    merged = content(most_age_minutes=DAY)
    merged.add(Batch(ORIGIN, 0, (fresh([1]), fresh([2], minute=NOW - 2 * DAY))))
    assert [one.tokens.tolist() for one in outputs(merged)] == [[1]]


def test_an_erasure_removes_outputs_and_stays_for_engines_that_missed_it():
    merged = content()
    ann, same, other = fresh([1], subject=b"ann"), fresh([1]), fresh([2], subject=b"bob")
    tombstone = ForgetSubject(b"ann")
    merged.add(Batch(ORIGIN, 0, (same, ann, other, tombstone, fresh([3], subject=b"ann"))))
    first, second = merged.batches()
    assert first == Batch(ORIGIN, 3, (tombstone,))
    found = {(tuple(one.tokens.tolist()), one.subject) for one in second.records}
    assert found == {((1,), b""), ((2,), b"bob"), ((3,), b"ann")}


def test_subjects_of_equal_outputs_are_kept():
    merged = content()
    merged.add(Batch(ORIGIN, 0, (fresh([1], subject=b"ann"), fresh([1], subject=b"bob"), fresh([1]))))
    assert {one.subject for one in outputs(merged)} == {b"ann", b"bob", b""}


def test_a_snapshot_goes_on_from_the_last(store):
    replica = Replica(store)
    writer = replica.keeper._writer
    replica.finish(output([1]))
    replica.pump()
    assert writer.write("acme")
    store.lose(replica.log.scope("acme"), 1)
    replica.finish(output([2]))
    replica.pump()
    assert writer.write("acme")
    found = [one.tokens.tolist() for batch in replica.log.snapshot("acme").batches for one in batch.records]
    assert sorted(found) == [[1], [2]]


def test_one_writer_writes(store):
    replica = Replica(store)
    replica.finish(output([1]))
    replica.pump()
    store.lease(replica.log.scope("acme"), "other", 10.0)
    assert not replica.keeper._writer.write("acme")
    store.now_s += 100
    assert replica.keeper._writer.write("acme")


def test_an_erasure_waits_for_another_writer(store):
    replica = Replica(store)
    replica.finish(output([1]))
    replica.pump()
    store.lease(replica.log.scope("acme"), "other", 10.0)

    def wait(seconds: float) -> None:
        store.now_s += seconds

    eraser = SnapshotWriter(replica.log, "mine", clock=lambda: store.now_s, wait=wait)
    with pytest.raises(CorpusError, match="another process"):
        eraser.erase("acme", replica.publisher.numbered("acme", ForgetStage(("plan",))), timeout_s=2.0)
    eraser.erase("acme", replica.publisher.numbered("acme", ForgetStage(("plan",))))
    assert not [
        one for batch in stored(replica.log, "acme") for one in batch.records if isinstance(one, Output)
    ]


def test_a_stage_is_erased_from_log_and_snapshot(store):
    replica = Replica(store)
    replica.finish(output([1], "a"))
    replica.finish(output([2], "b"))
    replica.pump()
    assert replica.keeper._writer.write("acme")
    replica.finish(output([1], "a"))
    replica.finish(output([3], "a/c"))
    replica.pump(61.0)
    replica.pump(61.0)
    replica.forget_stage("a")
    records = [record for batch in stored(replica.log, "acme") for record in batch.records]
    assert {tuple(one.tokens.tolist()) for one in records if isinstance(one, Output)} == {(2,)}
    assert ForgetStage(("a",)) in records


def test_rewritten_entries_keep_their_numbers(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    for number in range(3):
        here.finish(output([number], subject=b"ann" if number == 1 else b""))
    here.pump()
    here.forget_subject(b"ann")
    there.learn()
    assert there.held() == {("plan", (0,)): 1, ("plan", (2,)): 1}
    assert there.learner.figures().num_missing == 0
