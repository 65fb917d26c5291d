"""What acceptance models learn, between engines: the records, and models of real forests."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import DraftConfig, Forest, StageKey
from agentspec.corpus.batch import ModelUpdate
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.errors import ForkedForestError
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import Replica, output, stored

PLAN = StageKey("acme", ("plan",))
LEARNED = DraftConfig(rule="learned")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def send(replica: Replica, *updates: tuple[StageKey, bytes]) -> None:
    replica.trees.learned += updates
    replica.pump()
    replica.pump()


def updates_in(replica: Replica, tenant: str = "acme") -> list[bytes]:
    records = [record for batch in stored(replica.log, tenant) for record in batch.records]
    return [record.update for record in records if isinstance(record, ModelUpdate)]


def test_an_update_reaches_the_other_engines_once_and_its_own_never(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    send(here, (PLAN, b"x"), (StageKey("globex", ("plan",)), b"y"))
    for replica in (here, there, there):
        replica.learn()
    assert here.trees.merged == []
    assert set(there.trees.merged) == {(PLAN, b"x"), (StageKey("globex", ("plan",)), b"y")}
    assert len(there.trees.merged) == 2
    assert here.publisher.figures().num_updates == there.learner.figures().num_merged == 2
    assert 0 < here.publisher.figures().num_update_bytes == here.publisher.figures().num_bytes


def test_a_damaged_update_is_counted_and_changes_nothing_else(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output([1]))
    send(here, (PLAN, b"damaged"), (PLAN, b"x"))
    there.learn()
    assert there.trees.merged == [(PLAN, b"x")]
    assert there.held() == {("plan", (1,)): 1}
    assert there.learner.figures().num_damaged == 1


def test_models_of_tenants_without_outputs_keep_what_they_learn(store):
    here = Replica(store, joined=("globex",))
    send(here, (PLAN, b"x"), (StageKey("globex", ("plan",)), b"y"))
    assert here.trees.learned == [(PLAN, b"x")]
    assert here.publisher.tenants() == ["globex"]
    assert updates_in(here, "globex") == [b"y"]


def test_updates_are_sent_though_outputs_are_in_every_window(store):
    here = Replica(store)
    here.trees.learned.append((PLAN, b"x"))
    for number in range(10):
        here.finish(output([number]))
        here.pump(0.25)
    assert updates_in(here) == [b"x"]


def test_outputs_are_sent_though_updates_can_not_be_taken(store):
    here = Replica(store)

    def fail(_: object) -> list[tuple[StageKey, bytes]]:
        raise ForkedForestError("forked")

    here.trees.take_model_updates = fail
    here.finish(output([1]))
    here.pump()
    assert here.publisher.figures().num_published == 1


def test_while_the_store_is_away_models_keep_what_they_learn(store):
    here = Replica(store)
    here.trees.learned.append((PLAN, b"x"))
    store.is_away = True
    here.finish(output([1]))
    here.pump()
    here.trees.learned.append((PLAN, b"y"))
    here.pump(0.1)
    assert (PLAN, b"y") in here.trees.learned
    store.is_away = False
    for _ in range(3):
        here.pump(60.0)
    assert updates_in(here) == [b"x", b"y"]


def test_an_erasure_forgets_models_everywhere(store):
    here, there = Replica(store, "a"), Replica(store, "b")
    other = StageKey("acme", ("other",))
    send(here, (PLAN, b"x"), (StageKey("acme", ("plan", "a")), b"y"), (other, b"z"))
    there.learn()
    assert len(there.trees.merged) == 3
    here.forget_stage("plan")
    there.sync()
    assert there.trees.merged == [(other, b"z")]
    here.forget_subject(b"ann")
    there.sync()
    assert there.trees.merged == []
    send(here, (other, b"z"))
    there.learn()
    assert there.trees.merged == [(other, b"z")]
    here.forget_tenant("acme")
    there.sync()
    assert there.trees.merged == []


def test_an_update_of_a_stage_that_was_erased_meanwhile_is_erased_everywhere(store):
    """Its engine sends it before it reads of the erasure, so the erasure is repeated."""
    here, there = Replica(store, "a"), Replica(store, "b")
    there.forget_stage("plan")
    send(here, (PLAN, b"x"))
    there.learn()
    assert there.trees.merged == [(PLAN, b"x")]
    for _ in range(3):
        for replica in (here, there):
            replica.sync()
    assert there.trees.merged == []


def test_snapshots_hold_no_updates(store):
    here = Replica(store)
    here.finish(output([1]))
    send(here, (PLAN, b"x"))
    here.sync()
    here.clock.now_s += 1000.0
    here.keeper.step()
    snapshot = here.log.snapshot("acme")
    assert snapshot is not None
    assert not [one for batch in snapshot.batches for one in batch.records if isinstance(one, ModelUpdate)]


def test_a_model_learns_from_those_of_other_engines(tmp_path):
    """A stage whose drafts are always wrong is drafted for with less trust, where it has never run."""
    forests = [Forest(), Forest()]
    stores = [SqliteStore(tmp_path / "corpus") for _ in forests]
    here, there = (Replica(*pair) for pair in zip(stores, "ab", forests, strict=True))
    before = score(forests[1])
    here.finish(output([20, 21]))
    forests[0].start("a", PLAN, np.array([1, 2, 3], np.int32), draft=LEARNED)
    for number in range(400):
        forests[0].step([("a", np.array([1, 2], np.int32))])
        forests[0].observe("a", np.array([30 + number % 60], np.int32))
    for _ in range(2):
        here.pump()
        there.learn()
    assert there.learner.figures().num_merged >= 1
    assert score(forests[1]) < 0.9 * before
    assert score(forests[1], StageKey("acme", ("other",))) == before
    assert score(forests[1], StageKey("globex", ("plan",))) == before
    for forest, one in zip(forests, stores, strict=True):
        forest.check_integrity()
        one.close()


def score(forest: Forest, stage: StageKey = PLAN) -> float:
    forest.start("score", stage, np.array([1, 2, 3, 1, 2], np.int32), draft=LEARNED)
    found = forest.draft("score").score
    forest.finish("score", learn=False)
    return found
