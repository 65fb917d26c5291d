"""The settings of a corpus: whose outputs it gets, and that an erasure finds the others in the trees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agentspec import Forest, StageKey
from agentspec.corpus.corpus import open_corpus
from agentspec.corpus.settings import parse_reaches, reaches, sharing
from agentspec.errors import ConfigError
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import (
    VOCAB_SIZE,
    VOCABULARY,
    NotedTrees,
    Replica,
    output,
    stored,
    tree_outputs,
)

REACHES = {"secret": "none", "secret/open": "fleet", "a/b": "none"}


def test_the_longest_path_that_a_stage_is_below_decides() -> None:
    is_shared = sharing(reaches(REACHES))
    paths = ("secret", "secret/x", "secret/open/x", "a", "a/b", "a/b/c", "secrets")
    assert [path for path in paths if is_shared(tuple(path.split("/")))] == ["secret/open/x", "a", "secrets"]


def test_a_text_names_stages_with_their_reach() -> None:
    assert parse_reaches("secret=none, secret/open=fleet,a/b = none") == REACHES
    for bad in ("", "a", "a=all", "a=host", "=none", "a=none,,b=none"):
        with pytest.raises(ConfigError, match="STAGE=none or STAGE=fleet"):
            parse_reaches(bad)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "stages with none or fleet, not ['a']"),
        ({"a": "all"}, "'a' must be none or fleet, not 'all'"),
        ({"a": "host"}, "'a' must be none or fleet, not 'host'"),
        ({"a//b": "none"}, "'a//b' is no stage"),
        ({1: "none"}, "1 is no stage"),
    ],
)
def test_what_is_no_reach_of_a_stage_is_named(given: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reaches(given)
    assert message in str(refused.value)


@pytest.fixture
def here() -> Replica:
    publisher = {"is_shared": sharing(reaches(REACHES))}
    return Replica(MemoryStore(), trees=Forest(), publisher=publisher)


def test_nothing_of_a_stage_that_is_not_shared_is_in_the_store(here: Replica) -> None:
    for name in ("secret", "a/b", "plan"):
        here.finish(output([1, 2, 3], name))
    here.sync()
    assert {one.stage.path for batch in stored(here.log, "acme") for one in batch.outputs} == {("plan",)}
    assert here.publisher.figures().num_skipped == 2


@pytest.mark.parametrize(
    "erase", [lambda one: one.forget_stage("secret"), lambda one: one.forget_subject(b"ann")]
)
def test_an_erasure_finds_exactly_what_was_not_shared(
    here: Replica, erase: Callable[[Replica], None]
) -> None:
    here.finish(output([1, 2, 3], "secret", subject=b"ann"))
    here.finish(output([4, 5, 6], "plan"))
    here.sync()
    erase(here)
    here.sync()
    assert {tokens for held in tree_outputs(here.trees).values() for tokens in held} == {(4, 5, 6)}
    here.trees.check_integrity()


@pytest.mark.parametrize("reach", ["none", "fleet"])
def test_an_opened_corpus_keeps_to_the_reaches(tmp_path, reach: str) -> None:
    corpus = open_corpus(str(tmp_path), VOCABULARY, VOCAB_SIZE, NotedTrees(), reaches({"plan": reach}))
    corpus.start()
    corpus.share(StageKey.parse("plan", "acme"), np.array([1, 2], np.int32))
    corpus.close()
    figures = corpus.figures().publisher
    assert (figures.num_published, figures.num_skipped) == ((0, 1) if reach == "none" else (1, 0))
