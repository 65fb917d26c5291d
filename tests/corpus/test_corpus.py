"""Whole corpora with their threads, on stores of both kinds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agentspec.corpus.corpus import Corpus, CorpusConfig
from agentspec.corpus.store import open_store
from agentspec.errors import ConfigError
from agentspec.stages import StageKey
from tests.corpus.support.replica import VOCAB_SIZE, VOCABULARY, NotedTrees, output

TIMEOUT_S = 60.0


class WatchedTrees(NotedTrees):
    """Trees that announce each change."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def learn(self, *args) -> None:
        with self.changed:
            super().learn(*args)
            self.changed.notify_all()

    def forget(self, *args) -> None:
        with self.changed:
            super().forget(*args)
            self.changed.notify_all()

    def evict_tenant(self, tenant: str) -> None:
        with self.changed:
            super().evict_tenant(tenant)
            self.changed.notify_all()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_so, TIMEOUT_S)


@contextmanager
def running(location: str, trees: WatchedTrees) -> Iterator[Corpus]:
    corpus = Corpus(open_store(location), VOCABULARY, VOCAB_SIZE, trees)
    corpus.start()
    try:
        yield corpus
    finally:
        corpus.close(TIMEOUT_S)


@pytest.fixture
def pair(location: str) -> Iterator[tuple[Corpus, WatchedTrees]]:
    """Yield one engine's corpus, and the trees of another engine."""
    with ExitStack() as stack:
        trees = WatchedTrees()
        stack.enter_context(running(location, trees))
        yield stack.enter_context(running(location, WatchedTrees())), trees


def test_outputs_travel_and_are_forgotten(pair):
    corpus, trees = pair
    corpus.publish(output([1, 2], "a", subject=b"ann"))
    corpus.publish(output([3, 4], "b"))
    corpus.publish(output([5, 6], "c"))
    trees.wait_for(lambda: len(trees.held) == 3)
    corpus.forget_subject("acme", b"ann")
    trees.wait_for(lambda: len(trees.held) == 2)
    corpus.forget_stage(StageKey.parse("b", "acme"))
    trees.wait_for(lambda: set(trees.held) == {("acme", "c", (5, 6))})
    corpus.forget_tenant("acme")
    trees.wait_for(lambda: not trees.held)


def test_figures(pair):
    corpus, trees = pair
    corpus.publish(output([1, 2]))
    trees.wait_for(lambda: len(trees.held) == 1)
    figures = corpus.figures()
    assert figures.publisher.num_published == 1
    assert figures.learner.num_outputs == 0
    assert figures.memory_bytes > 0


def test_a_person_has_a_name(pair):
    with pytest.raises(ConfigError, match="subject"):
        pair[0].forget_subject("acme", b"")


@pytest.mark.parametrize("name", ["cpu_share", "join_bytes", "memory_bytes", "snapshot_every_s"])
def test_limits_are_positive(name):
    with pytest.raises(ConfigError, match=name):
        CorpusConfig(**{name: 0})


def test_threads_end_with_the_corpus(location):
    before = threading.active_count()
    with running(location, WatchedTrees()):
        assert threading.active_count() == before + 3
    assert threading.active_count() == before
