"""Outputs that other engines follow while they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentspec import Forest, StageKey
from agentspec.corpus.batch import Count, ForgetSubject, Part
from agentspec.corpus.erasure import PLACEHOLDER, Erasure
from agentspec.corpus.followed import LONGEST_PAUSE_S, MOST_FOLLOWED, FollowedOutputs
from agentspec.corpus.output import Output
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.corpus.written import LEAST_PART, MOST_MORE, MOST_SHOWN_TOKENS, WrittenOutput
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import VOCAB_SIZE, Clock, NotedTrees, Replica, output, stored

ORIGIN = b"z" * 16
TEXT = [20 + i % 71 for i in range(3 * LEAST_PART)]  # two parts
HALF = TEXT[:LEAST_PART]


def part(*tokens: int, number: int = 0, begin: int = 0, path: tuple[str, ...] = ("plan",)) -> Part:
    return Part(path, number, begin, np.array(tokens, "<i4").tobytes())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trees() -> NotedTrees:
    return NotedTrees()


@pytest.fixture
def followed(trees: NotedTrees, clock: Clock) -> FollowedOutputs:
    return FollowedOutputs(trees, VOCAB_SIZE, clock)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def texts(trees: NotedTrees) -> list[list[Any]]:
    return [tokens for _, *tokens in trees.followed.values()]


# ---- one engine that follows ----


def test_an_output_is_followed_from_its_beginning_to_its_end(followed: Any, trees: NotedTrees) -> None:
    followed.take("acme", ORIGIN, part(1, 2))
    followed.take("acme", ORIGIN, part(3, begin=2))
    followed.take("acme", ORIGIN, part(7, number=1))
    assert texts(trees) == [[1, 2, 3], [7]]
    assert next(iter(trees.followed.values()))[0] == ("acme", "plan")
    followed.take("acme", ORIGIN, part())
    assert texts(trees) == [[7]]


def test_origins_and_tenants_have_numbers_of_their_own(followed: Any, trees: NotedTrees) -> None:
    for tenant, origin in (("acme", ORIGIN), ("globex", ORIGIN), ("acme", b"y" * 16)):
        followed.take(tenant, origin, part(1))
    followed.drop_tenant("acme")
    assert [stage for stage, *_ in trees.followed.values()] == [("globex", "plan")]


@pytest.mark.parametrize(
    "broken",
    [
        part(3, begin=1),  # it was there before
        part(3, begin=5),  # something is missing
        part(VOCAB_SIZE, begin=2),
        part(-1, begin=2),
    ],
)
def test_an_output_with_a_gap_or_unknown_tokens_is_not_followed_further(
    followed: Any, trees: NotedTrees, broken: Part
) -> None:
    followed.take("acme", ORIGIN, part(1, 2))
    followed.take("acme", ORIGIN, broken)
    followed.take("acme", ORIGIN, part(4, begin=3))
    assert texts(trees) == []
    assert len(followed) == 0


def test_an_output_whose_beginning_was_missed_is_not_followed(followed: Any, trees: NotedTrees) -> None:
    followed.take("acme", ORIGIN, part(3, begin=2))
    followed.take("acme", ORIGIN, part())
    assert texts(trees) == []


def test_outputs_of_engines_that_fell_silent_are_forgotten(
    followed: Any, trees: NotedTrees, clock: Clock
) -> None:
    followed.take("acme", ORIGIN, part(1))
    clock.now_s += LONGEST_PAUSE_S / 2
    followed.take("acme", ORIGIN, part(2, number=1))
    clock.now_s += LONGEST_PAUSE_S / 2
    followed.take("acme", ORIGIN, part(3, number=1, begin=1))
    followed.drop_silent()
    assert texts(trees) == [[2, 3]]


def test_only_so_many_are_followed(followed: Any, trees: NotedTrees) -> None:
    for number in range(MOST_FOLLOWED + 3):
        followed.take("acme", ORIGIN, part(1, number=number))
    assert len(trees.followed) == len(followed) == MOST_FOLLOWED
    followed.take("acme", ORIGIN, part(2, begin=1))  # those that are followed go on
    assert texts(trees)[0] == [1, 2]
    followed.drop_all()
    assert texts(trees) == []


def test_a_part_that_comes_too_late_ends_its_output(followed: Any, trees: NotedTrees) -> None:
    followed.take("acme", ORIGIN, part(1))
    followed.miss("acme", ORIGIN, part(2, begin=1))
    followed.miss("acme", ORIGIN, part(2, number=7))
    assert texts(trees) == []


def test_a_failure_ends_one_output_and_no_other(followed: Any, trees: NotedTrees, caplog: Any) -> None:
    followed.take("acme", ORIGIN, part(1))
    followed.take("acme", ORIGIN, part(7, number=1))
    del trees.followed[next(iter(trees.followed))]  # the trees lost it
    followed.take("acme", ORIGIN, part(2, begin=1))
    assert "is not followed" in caplog.text
    assert texts(trees) == [[7]]
    assert len(followed) == 1


def test_very_long_outputs_are_not_followed_to_their_end(followed: Any, trees: NotedTrees) -> None:
    sent: list[Any] = []
    written = WrittenOutput(StageKey.parse("plan", "acme"), b"", 5, sent.append)
    written.send([1] * MOST_SHOWN_TOKENS)
    written.send([1] * LEAST_PART)
    written.show([1] * (2 * MOST_SHOWN_TOKENS))
    written.abandon()
    assert [len(entry[1]) for entry in sent] == [MOST_SHOWN_TOKENS, 0]
    followed.take("acme", ORIGIN, part(*[1] * MOST_SHOWN_TOKENS))
    followed.take("acme", ORIGIN, part(1, begin=MOST_SHOWN_TOKENS))
    assert texts(trees) == []


# ---- the engine that writes ----


def test_few_tokens_wait_for_the_next_ones() -> None:
    sent: list[Any] = []
    written = WrittenOutput(StageKey.parse("plan", "acme"), b"", 5, sent.append)
    for end in (1, LEAST_PART - 1, LEAST_PART, LEAST_PART + 1, len(TEXT) - 1, len(TEXT)):
        written.show(TEXT[:end])
    assert [(list(entry[1]), entry[6:8]) for entry in sent] == [
        (HALF, (5, 0)),
        (TEXT[LEAST_PART:], (5, LEAST_PART)),
    ]


def test_an_output_doubles_from_part_to_part_up_to_a_limit() -> None:
    sent: list[Any] = []
    written = WrittenOutput(StageKey.parse("plan", "acme"), b"", 5, sent.append, 4, 16)
    for end in range(100):
        written.show([1] * end)
    assert [len(entry[1]) for entry in sent] == [4, 8, 16, 20, 20, 20]
    for end in range(100, MOST_SHOWN_TOKENS + 1):
        written.show([1] * end)
    assert written.num_shown > MOST_SHOWN_TOKENS - 20


def test_the_longest_part_of_a_slow_engine_is_no_silence() -> None:
    tokens_per_s = 1.0
    assert (LEAST_PART + MOST_MORE) / tokens_per_s < LONGEST_PAUSE_S


def test_an_output_that_nobody_saw_needs_no_end() -> None:
    sent: list[Any] = []
    WrittenOutput(StageKey.parse("plan", "acme"), b"", 5, sent.append).abandon()
    assert sent == []


# ---- two engines ----


def test_what_one_engine_writes_another_drafts_before_it_is_over(tmp_path: Any) -> None:
    forests = [Forest(), Forest()]
    stores = [SqliteStore(tmp_path / "corpus") for _ in forests]
    here, there = (Replica(*pair) for pair in zip(stores, "ab", forests, strict=True))
    there.learn()  # it has joined
    written = here.write()
    written.show(HALF)
    here.pump()
    there.learn()
    stage = StageKey.parse("plan", "acme")
    there.trees.start("request", stage, np.array([9], np.int32))
    (draft,) = there.trees.step([("request", np.array(HALF[:2], np.int32))])
    assert draft.token_ids[:3].tolist() == HALF[2:5]
    num_tokens = there.trees.stats(stage).num_tokens
    written.show(TEXT)
    written.abandon()
    here.pump()
    there.learn()
    assert there.trees.stats(stage).num_tokens < num_tokens
    there.trees.check_integrity()
    for one in stores:
        one.close()


def test_the_end_replaces_what_was_followed(store: MemoryStore) -> None:
    here, there = Replica(store, "a"), Replica(store, "b")
    there.learn()
    written = here.write()
    written.show(HALF)
    here.pump()
    there.learn()
    assert texts(there.trees) == [HALF]
    assert there.held() == {}
    here.end(written, output(TEXT))
    here.pump()
    there.learn()
    assert texts(there.trees) == []
    assert there.held() == {("plan", tuple(TEXT)): 1}
    assert there.learner.figures().num_outputs == 1


def test_a_repetition_that_was_followed_is_counted_at_once(store: MemoryStore) -> None:
    here, there = Replica(store, "a"), Replica(store, "b")
    here.finish(output(TEXT))
    here.pump()
    written = here.write()
    written.show(HALF)
    here.pump()
    here.end(written, output(TEXT))
    here.pump()
    there.learn()
    assert there.held() == {("plan", tuple(TEXT)): 2}
    records = [record for batch in stored(here.log, "acme") for record in batch.records]
    assert [type(record) for record in records] == [Output, Part, Part, Count]


def test_a_repetition_that_others_did_not_see_is_counted_later(store: MemoryStore) -> None:
    here = Replica(store)
    here.finish(output(TEXT))
    here.pump()
    written = here.write()
    written.show(HALF)
    here.end(written, output(TEXT))
    here.pump()
    records = [record for batch in stored(here.log, "acme") for record in batch.records]
    assert [type(record) for record in records] == [Output]
    here.pump(60.0)
    records = [record for batch in stored(here.log, "acme") for record in batch.records]
    assert [type(record) for record in records] == [Output, Count]


def test_while_the_store_is_away_parts_make_room_for_outputs(store: MemoryStore) -> None:
    replica = Replica(store)
    store.is_away = True
    replica.finish(output([1]))
    replica.pump()
    replica.write().show(TEXT)
    replica.finish(output([2]))
    replica.pump(0.0)  # the breaker is open
    store.is_away = False
    replica.pump(60.0)
    replica.pump(60.0)
    records = [record for batch in stored(replica.log, "acme") for record in batch.records]
    assert [type(record) for record in records] == [Output, Output]


def test_own_parts_are_not_followed(store: MemoryStore) -> None:
    replica = Replica(store)
    replica.write().show(TEXT)
    replica.sync()
    assert texts(replica.trees) == []


def test_a_snapshot_and_a_late_reader_know_no_parts(store: MemoryStore) -> None:
    here = Replica(store, "a")
    written = here.write()
    written.show(HALF)
    here.sync()
    written.show(TEXT)
    here.sync()
    late = Replica(store, "b")
    late.sync()
    assert texts(late.trees) == []
    here.end(written, output(TEXT))
    here.sync()
    late.learn()
    assert texts(late.trees) == []
    assert late.held() == {("plan", tuple(TEXT)): 1}


# ---- erasures ----


def test_an_erasure_takes_parts_from_the_store_and_from_those_who_follow(store: MemoryStore) -> None:
    here, there = Replica(store, "a"), Replica(store, "b")
    there.learn()
    anns, other = here.write(subject=b"ann"), here.write()
    anns.show(HALF)
    other.show(TEXT)
    here.pump()
    there.learn()
    assert len(texts(there.trees)) == 2
    here.forget_subject(b"ann")
    for replica in (here, there, here, there):
        replica.sync()
    assert texts(there.trees) == []  # no output of the tenant is followed further
    data = [record for batch in stored(here.log, "acme") for record in batch.records]
    assert not any(isinstance(record, Part) and record.subject == b"ann" for record in data)


def test_an_erasure_covers_the_parts_of_its_stage_or_subject() -> None:
    erasure = Erasure(ForgetSubject(b"ann"))
    assert erasure.covers(Part(("plan",), 0, 0, b"", b"ann"))
    assert not erasure.covers(part(1))
    assert not erasure.covers(PLACEHOLDER)
    assert erasure.digests == set()


def test_parts_that_wait_are_withdrawn(store: MemoryStore) -> None:
    replica = Replica(store)
    replica.write(subject=b"ann").show(TEXT)
    replica.write().show(HALF)
    withdrawal = replica.publisher.withdraw("acme", Erasure(ForgetSubject(b"ann")))
    assert withdrawal.outputs == []
    replica.pump()
    parts = [record for batch in stored(replica.log, "acme") for record in batch.records]
    assert [one.token_ids.tolist() for one in parts] == [HALF]
