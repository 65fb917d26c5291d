"""A corpus of a fleet with one of a host: which outputs are where, and that erasures find all of them."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import redis

from agentspec import Forest
from agentspec.corpus.batch import ForgetStage, ForgetSubject
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.corpus import Corpus
from agentspec.corpus.host_erasures import MARKS, HostErasures
from agentspec.corpus.opening import check_corpus, open_corpus
from agentspec.corpus.output import Output
from agentspec.corpus.reach import reaches
from agentspec.corpus.split_corpus import SplitCorpus
from agentspec.corpus.store import Scope, open_store
from agentspec.errors import ConfigError, CorpusError, UnknownRequestError
from agentspec.stages import StageKey
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import VOCAB_SIZE, VOCABULARY, NotedTrees, stored, tree_outputs

TIMEOUT_S = 60.0
STAGES = reaches({"here": "host", "secret": "none"})


class Engine:
    """A process with a corpus of a fleet, and one of its host."""

    def __init__(self, fleet: MemoryStore, folder: Path) -> None:
        self.trees = Forest()
        fleet_corpus, host = (
            Corpus(store, VOCABULARY, VOCAB_SIZE, self.trees, is_shared=is_shared)
            for store, is_shared in (
                (fleet, lambda path: path[0] not in ("here", "secret")),
                (open_store(str(folder)), lambda path: path[0] == "here"),
            )
        )
        self.corpus = SplitCorpus(fleet_corpus, host, lambda path: path[0] == "here", folder, VOCABULARY)

    def finish(self, stage: str, *tokens: int, subject: bytes = b"") -> None:
        key = StageKey.parse(stage, "acme")
        learned = np.array(tokens, np.int32)
        self.trees.learn(key, learned)
        self.corpus.share(key, learned, subject=subject)

    @property
    def held(self) -> set[tuple[str, tuple[int, ...]]]:
        """Stages with their outputs, of the stages' own trees."""
        outputs = tree_outputs(self.trees).items()
        return {("/".join(path), one) for (_, path), held in outputs if path for one in held}

    def wait_for(self, *held: tuple[str, tuple[int, ...]]) -> None:
        wait_for(lambda: self.held == set(held))


def wait_for(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        with suppress(UnknownRequestError):  # trees may be emptied while they are read
            if is_so():
                return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


@contextmanager
def engine(fleet: MemoryStore, folder: Path) -> Iterator[Engine]:
    one = Engine(fleet, folder)
    one.corpus.start()
    try:
        yield one
    finally:
        one.corpus.close(TIMEOUT_S)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let learners look at their stores more often."""
    for name in ("learner.TENANTS_EVERY_S", "learner._WAIT_S", "follower.EPOCH_EVERY_S"):
        monkeypatch.setattr(f"agentspec.corpus.{name}", 0.05)


@pytest.fixture
def fleet() -> MemoryStore:
    return MemoryStore()


def stored_in(folder: Path) -> set[tuple[str, tuple[int, ...]]]:
    with closing(open_store(str(folder))) as store:
        records = [one for batch in stored(BatchLog(store, VOCABULARY), "acme") for one in batch.records]
    return {(one.stage.name, tuple(one.tokens.tolist())) for one in records if isinstance(one, Output)}


def test_a_host_shares_what_does_not_leave_it(fleet, tmp_path):
    hosts = [tmp_path / "one", tmp_path / "two"]
    with engine(fleet, hosts[0]) as one, engine(fleet, hosts[0]) as same, engine(fleet, hosts[1]) as other:
        one.finish("here", 1, 2)
        one.finish("secret", 3, 4)
        one.finish("plan", 5, 6)
        same.wait_for(("here", (1, 2)), ("plan", (5, 6)))
        other.wait_for(("plan", (5, 6)))
        wait_for(lambda: same.corpus.figures().learner.num_outputs == 2)
        figures = one.corpus.figures()
        assert (figures.publisher.num_published, figures.publisher.num_skipped) == (2, 1)
        assert same.corpus.figures().describe()["num_learned"] == 2
    assert stored_in(hosts[0]) == {("here", (1, 2))}
    in_fleet = [one for batch in stored(BatchLog(fleet, VOCABULARY), "acme") for one in batch.records]
    assert {one.stage.name for one in in_fleet if isinstance(one, Output)} == {"plan"}


def test_a_new_engine_learns_from_both(fleet, tmp_path):
    with engine(fleet, tmp_path) as one:
        one.finish("here", 1, 2)
        one.finish("plan", 5, 6)
    with engine(fleet, tmp_path) as one:
        assert one.corpus.wait_joined(TIMEOUT_S)
        assert one.held == {("here", (1, 2)), ("plan", (5, 6))}
        fleet.is_away = True
    new = Engine(fleet, tmp_path)
    new.corpus.start()
    assert not new.corpus.wait_joined(0.3)
    new.corpus.close()


def test_running_outputs_are_followed_on_the_host_alone(fleet, tmp_path):
    key = StageKey.parse("here", "acme")
    hosts = [tmp_path / "one", tmp_path / "two"]
    with engine(fleet, hosts[0]) as one, engine(fleet, hosts[0]) as same, engine(fleet, hosts[1]) as other:
        one.finish("here", 9, 9)
        one.finish("plan", 9, 9)
        other.wait_for(("plan", (9, 9)))
        same.wait_for(("here", (9, 9)), ("plan", (9, 9)))
        written = one.corpus.begin(key)
        written.send([1, 2, 3])
        wait_for(lambda: same.trees.stats().num_requests == 1)
        assert other.trees.stats().num_requests == 0
        one.trees.learn(key, np.array([1, 2, 3, 4], np.int32))
        one.corpus.share(key, [1, 2, 3, 4], written=written)
        same.wait_for(("here", (9, 9)), ("here", (1, 2, 3, 4)), ("plan", (9, 9)))
        wait_for(lambda: same.trees.stats().num_requests == 0)


@pytest.mark.parametrize(
    ("tombstone", "left"),
    [
        (ForgetSubject(b"ann"), {("here", (3, 4)), ("plan", (7, 8))}),
        (ForgetStage(("here",)), {("plan", (5, 6)), ("plan", (7, 8))}),
        (None, set()),
    ],
)
def test_an_erasure_of_the_fleet_is_one_of_the_host(fleet, tmp_path, tombstone, left):
    """Another process, as the command is, erases in the fleet's store alone."""
    with engine(fleet, tmp_path) as one, engine(fleet, tmp_path) as same:
        one.finish("here", 1, 2, subject=b"ann")
        one.finish("here", 3, 4)
        one.finish("plan", 5, 6, subject=b"ann")
        one.finish("plan", 7, 8)
        everything = {("here", (1, 2)), ("here", (3, 4)), ("plan", (5, 6)), ("plan", (7, 8))}
        same.wait_for(*everything)
        erase(fleet, tombstone)
        one.wait_for(*left)
        same.wait_for(*left)
        wait_for(lambda: stored_in(tmp_path) == {held for held in left if held[0] == "here"})
        wait_for(lambda: len(list((tmp_path / MARKS).iterdir())) == 1)


@pytest.mark.parametrize("tombstone", [ForgetSubject(b"ann"), ForgetStage(("here",)), None])
def test_a_host_without_engines_erases_once_when_the_next_one_starts(fleet, tmp_path, tombstone):
    with engine(fleet, tmp_path) as one:
        one.finish("here", 1, 2, subject=b"ann")
        one.finish("plan", 5, 6)
        wait_for(lambda: one.corpus.figures().publisher.num_published == 2)
    erase(fleet, tombstone)
    with engine(fleet, tmp_path) as one:
        wait_for(lambda: not stored_in(tmp_path))
        wait_for(lambda: ("here", (1, 2)) not in one.held)
        wait_for(lambda: len(list((tmp_path / MARKS).iterdir())) == 1)
        one.finish("here", 7, 8, subject=b"ann")
        wait_for(lambda: stored_in(tmp_path) == {("here", (7, 8))})
    with engine(fleet, tmp_path) as one:  # it meets the erasure again, behind which the output stands
        assert one.corpus.wait_joined(TIMEOUT_S)
        time.sleep(1.0)  # longer than a step of all threads
        assert ("here", (7, 8)) in one.held
    assert stored_in(tmp_path) == {("here", (7, 8))}


def test_what_one_corpus_empties_the_other_learns_again(fleet, tmp_path):
    with engine(fleet, tmp_path) as one, engine(fleet, tmp_path) as same:
        one.finish("here", 1, 2)
        one.finish("plan", 5, 6)
        same.wait_for(("here", (1, 2)), ("plan", (5, 6)))
        with closing(open_store(str(tmp_path))) as host:  # of the host alone
            host.erase(BatchLog(host, VOCABULARY).scope("acme"))
        same.wait_for(("plan", (5, 6)))
        one.wait_for(("plan", (5, 6)))
        one.trees.check_integrity()


def test_an_erasure_that_fails_is_tried_again(tmp_path, caplog):
    erased: list[object] = []
    is_away = True

    def erase(tenant: str, tombstone: object) -> None:
        if is_away:
            raise CorpusError("away")
        erased.append((tenant, tombstone))

    erasures = HostErasures(tmp_path, VOCABULARY, erase)
    erasures.note("acme", b"1", None)
    erasures.step()
    erasures.step()
    assert caplog.text.count("away") == 1
    is_away = False
    erasures.step()
    erasures.note("acme", b"1", None)
    erasures.note("globex", b"1", ForgetStage(("plan",)))
    erasures.step()
    again = HostErasures(tmp_path, VOCABULARY, erase)  # another process
    again.note("acme", b"1", None)
    again.step()
    assert erased == [("acme", None), ("globex", ForgetStage(("plan",)))]
    other = HostErasures(tmp_path, "another", erase)
    other.note("acme", b"1", None)
    other.step()
    assert len(erased) == 3


def test_an_erasure_that_fails_holds_up_no_other(tmp_path):
    erased: list[str] = []

    def erase(tenant: str, tombstone: object) -> None:
        if tenant == "acme":
            raise CorpusError("its key")
        erased.append(tenant)

    erasures = HostErasures(tmp_path, VOCABULARY, erase)
    for tenant in ("acme", "globex"):
        erasures.note(tenant, b"1", None)
    for _ in range(2):
        erasures.step()
    assert (erased, erasures.num_failures) == (["globex"], 2)


def test_an_erasure_is_not_repeated_because_its_mark_can_not_be_written(tmp_path, monkeypatch):
    erased: list[str] = []
    erasures = HostErasures(tmp_path, VOCABULARY, lambda tenant, _: erased.append(tenant))
    shutil.rmtree(tmp_path / MARKS)  # an operator empties the folder
    erasures.note("acme", b"1", None)
    with monkeypatch.context() as full:
        full.setattr(Path, "touch", disk_full)
        for _ in range(3):
            erasures.step()
    assert not list((tmp_path / MARKS).iterdir())
    erasures.step()
    assert len(list((tmp_path / MARKS).iterdir())) == 1
    assert erased == ["acme"]


def disk_full(self: Path) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_engines_of_a_host_erase_one_after_the_other(tmp_path):
    erased: list[str] = []
    other = HostErasures(tmp_path, VOCABULARY, lambda tenant, _: erased.append(tenant))
    other.note("acme", b"1", None)
    one = HostErasures(tmp_path, VOCABULARY, lambda *_: other.step())  # while this one erases
    one.note("acme", b"1", None)
    one.step()
    assert not erased
    other.step()
    assert not erased  # it has been done
    other.note("acme", b"2", None)
    other.step()
    assert erased == ["acme"]


def test_the_fleet_knows_the_tenants_of_its_hosts(fleet, tmp_path):
    with engine(fleet, tmp_path) as one:
        one.finish("here", 1, 2)
        wait_for(lambda: fleet.tenants(VOCABULARY) == ["acme"])
        erase(fleet, None)
        wait_for(lambda: any((tmp_path / MARKS).iterdir()))
        assert not stored_in(tmp_path)
        one.finish("here", 3, 4)
        wait_for(lambda: stored_in(tmp_path) == {("here", (3, 4))})
    assert not any(
        isinstance(record, Output)
        for batch in stored(BatchLog(fleet, VOCABULARY), "acme")
        for record in batch.records
    )


@pytest.mark.usefixtures("redis_url")
def test_a_flushed_store_begins_no_epoch_again(tmp_path, redis_port):
    """The mark of an erasure from before does not stand for one from after it."""
    scope = Scope(VOCABULARY, "acme")
    epochs = []
    with (
        closing(open_store(f"redis://127.0.0.1:{redis_port}/0")) as store,
        redis.Redis(port=redis_port) as client,
    ):
        for _ in range(2):
            store.erase(scope)
            epochs.append(store.epoch(scope))
            client.flushall()
            assert store.epoch(scope) == 0
            time.sleep(1.0)  # epochs are seconds
    assert epochs[0] < epochs[1]


def test_a_corpus_that_hangs_takes_no_time_from_the_other(fleet, tmp_path, monkeypatch):
    one = Engine(fleet, tmp_path)
    one.corpus.start()
    one.finish("plan", 1, 2)
    monkeypatch.setattr(one.corpus._host, "close", time.sleep)
    one.corpus.close(1.0)
    assert fleet.tenants(VOCABULARY) == ["acme"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "redis://here"}, "must be a folder of this machine, not 'redis://here'"),
        ({"host": ""}, "must be a folder of this machine"),
        ({"location": "/srv/corpus"}, "'/srv/corpus' is on this machine already"),
        (
            {"location": "/srv/a/../host", "snapshots": "s3://bucket"},
            "'/srv/host' is the folder of the corpus",
        ),
        ({"stages": {("a",): "none"}}, "no stage has the reach host"),
    ],
)
def test_a_corpus_of_the_host_that_is_for_nothing(given, said):
    asked = {"location": "redis://store", "stages": STAGES, "host": "/srv/host", **given}
    with pytest.raises(ConfigError, match=said):
        check_corpus(**asked)


def test_a_folder_that_can_not_be_used_is_named(tmp_path, redis_url):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        open_corpus(
            redis_url, VOCABULARY, VOCAB_SIZE, NotedTrees(), stages=STAGES, host=str(tmp_path / "file")
        )


def test_one_on_redis_is_opened_by_its_settings(tmp_path, redis_url):
    corpus = open_corpus(redis_url, VOCABULARY, VOCAB_SIZE, NotedTrees(), stages=STAGES, host=str(tmp_path))
    corpus.start()
    for stage in ("here", "here/too", "secret", "plan"):
        corpus.share(StageKey.parse(stage, "acme"), np.array([1, 2], np.int32))
    corpus.close(TIMEOUT_S)
    assert stored_in(tmp_path) == {("here", (1, 2)), ("here/too", (1, 2))}
    with closing(open_store(redis_url)) as store:
        records = [one for batch in stored(BatchLog(store, VOCABULARY), "acme") for one in batch.records]
    assert [one.stage.name for one in records] == ["plan"]


def erase(fleet: MemoryStore, tombstone: ForgetStage | ForgetSubject | None) -> None:
    """Erase as a process of its own."""
    corpus = Corpus(fleet, VOCABULARY, VOCAB_SIZE, NotedTrees())
    corpus.forget("acme", tombstone)
