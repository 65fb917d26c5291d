"""The inventory of a scope: what counts once, and what an erasure removes from it."""

from __future__ import annotations

import pytest

from agentspec.corpus.batch import Batch, Count, ForgetStage, ForgetSubject
from agentspec.corpus.contents import ScopeContents
from agentspec.corpus.erasure import PLACEHOLDER
from agentspec.corpus.inventory import Inventory
from agentspec.corpus.snapshots import SnapshotWriter
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import Replica, output

ORIGIN = b"o" * 16


@pytest.fixture
def replica() -> Replica:
    return Replica(MemoryStore())


def publish(replica: Replica, first: int, *records) -> None:
    batch = Batch(ORIGIN, first, records)
    replica.log.store.publish(replica.log.scope("acme"), replica.log.encode("acme", batch))


def inventory(replica: Replica) -> Inventory:
    return Inventory.of(ScopeContents(replica.log.store, replica.log.scope("acme")))


def uses(replica: Replica) -> dict[tuple[str, bytes, int], int]:
    return {("/".join(held.path), held.subject, held.num_tokens): held.uses for held in inventory(replica)}


def test_a_batch_sent_twice_counts_once(replica):
    for _ in range(2):
        publish(replica, 0, output([1]), Count(output([1]).digest, ("plan",), 4))
    assert uses(replica) == {("plan", b"", 1): 5}
    assert inventory(replica).origins == {ORIGIN}


def test_what_a_snapshot_merged_counts_once(replica):
    publish(replica, 0, output([1]), output([2, 2], uses=3))
    SnapshotWriter(replica.log, "writer", most_age_s=1e12).write("acme")
    publish(replica, 2, output([1]), Count(output([2, 2]).digest, ("plan",), 2))
    assert uses(replica) == {("plan", b"", 1): 2, ("plan", b"", 2): 5}


def test_what_the_snapshot_left_out_is_counted_from_the_log(replica):
    publish(replica, 0, output([1]), output([2, 2], uses=3))
    SnapshotWriter(replica.log, "writer", most_bytes=8, most_age_s=1e12).write("acme")
    assert uses(replica) == {("plan", b"", 1): 1, ("plan", b"", 2): 3}


def test_equal_outputs_of_two_persons_are_two(replica):
    publish(replica, 0, output([1], subject=b"ann"), output([1], subject=b"bob"))
    assert uses(replica) == {("plan", b"ann", 1): 1, ("plan", b"bob", 1): 1}
    publish(replica, 2, ForgetSubject(b"ann"))
    assert uses(replica) == {("plan", b"bob", 1): 1}
    assert inventory(replica).num_tombstones == 1


def test_an_erasure_covers_what_stands_before_it(replica):
    publish(replica, 0, output([1], "a/b"), ForgetStage(("a",)), output([2], "a/b"), PLACEHOLDER)
    assert uses(replica) == {("a/b", b"", 1): 1}
    (held,) = inventory(replica).covered(ForgetStage(("a",)))
    assert held.path == ("a", "b")


def test_sizes_are_shared_among_stages(replica):
    publish(replica, 0, output([1] * 1000, "a"), output([2] * 10, "b"), ForgetSubject(b"ann"))
    found = inventory(replica)
    total = replica.log.store.stats()[replica.log.scope("acme")].num_bytes
    assert found.bytes_by_path["a",] > found.bytes_by_path["b",] > 0
    assert sum(found.bytes_by_path.values()) <= total


def test_batches_that_cannot_be_used_are_counted(replica):
    replica.log.store.publish(replica.log.scope("acme"), b"noise")
    publish(replica, 0, output([1]))
    assert inventory(replica).num_unreadable == 1
    assert len(list(inventory(replica))) == 1


def test_an_output_is_taken_once_with_all_its_uses(replica):
    publish(replica, 0, output([1], minute=5), output([1], minute=9))
    found = inventory(replica)
    taken = found.take(output([1], minute=5))
    assert taken is not None
    assert (taken.uses, taken.minute) == (2, 9)
    assert found.take(output([1])) is None
