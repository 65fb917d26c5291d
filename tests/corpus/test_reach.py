"""How far the outputs of a stage travel: what a corpus gets, and that an erasure finds the rest."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import Forest, StageKey
from agentspec.corpus.batch import Part
from agentspec.corpus.opening import open_corpus
from agentspec.corpus.reach import FLEET, parse_reaches, reach_of, reaches
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

REACHES = {"secret": "none", "secret/open": "fleet", "a/b": "host"}


def test_the_longest_path_that_a_stage_is_below_decides():
    reach = reach_of(reaches(REACHES))
    paths = ("secret", "secret/x", "secret/open/x", "a", "a/b", "a/b/c", "secrets")
    found = {path: reach(tuple(path.split("/"))) for path in paths}
    assert found == {
        "secret": "none",
        "secret/x": "none",
        "secret/open/x": "fleet",
        "a": "fleet",
        "a/b": "host",
        "a/b/c": "host",
        "secrets": "fleet",
    }


def test_a_text_names_stages_with_their_reach():
    assert parse_reaches("secret=none, secret/open=fleet,a/b = host") == REACHES
    for bad in ("", "a", "a=all", "=host", "a=none,,b=none"):
        with pytest.raises(ConfigError, match="STAGE=none"):
            parse_reaches(bad)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "stages with none, host or fleet, not ['a']"),
        ({"a": "all"}, "'a' must be none, host or fleet, not 'all'"),
        ({"a//b": "none"}, "'a//b' is no stage"),
        ({1: "none"}, "1 is no stage"),
    ],
)
def test_what_is_no_reach_of_a_stage_is_named(given, message):
    with pytest.raises(ConfigError) as refused:
        reaches(given)
    assert message in str(refused.value)


@pytest.fixture
def here() -> Replica:
    reach = reach_of(reaches(REACHES))
    is_shared = {"is_shared": lambda path: reach(path) == FLEET}
    return Replica(MemoryStore(), trees=Forest(), publisher=is_shared)


def test_nothing_of_a_stage_that_is_not_shared_is_in_the_store(here):
    stages = [StageKey("acme", (name,)) for name in ("secret", "plan")]
    here.trees.take_model_updates = lambda wants: [(stage, b"x") for stage in stages if wants(stage)]
    for name in ("secret", "a/b", "plan"):
        written = here.write(name)
        written.send([1, 2])
        here.pump()
        here.end(written, output([1, 2, 3], name))
        here.finish(output([1, 2, 3], name))
    for _ in range(3):
        here.pump(61.0)
    records = [record for batch in stored(here.log, "acme") for record in batch.records]
    paths = {record.stage.path if hasattr(record, "stage") else record.path for record in records}
    assert paths == {("plan",)}
    assert any(isinstance(record, Part) for record in records)


@pytest.mark.parametrize(
    "erase", [lambda one: one.forget_stage("secret"), lambda one: one.forget_subject(b"ann")]
)
def test_an_erasure_finds_exactly_what_was_not_shared(here, erase):
    here.finish(output([1, 2, 3], "secret", subject=b"ann"))
    here.finish(output([4, 5, 6], "plan"))
    here.sync()
    erase(here)
    here.sync()
    assert {tokens for held in tree_outputs(here.trees).values() for tokens in held} == {(4, 5, 6)}
    here.trees.check_integrity()


@pytest.mark.parametrize("reach", ["none", "host"])
def test_a_corpus_in_a_folder_is_of_one_host(tmp_path, reach):
    corpus = open_corpus(str(tmp_path), VOCABULARY, VOCAB_SIZE, NotedTrees(), stages=reaches({"plan": reach}))
    corpus.start()
    corpus.share(StageKey.parse("plan", "acme"), np.array([1, 2], np.int32))
    corpus.close()
    figures = corpus.figures().publisher
    assert (figures.num_published, figures.num_skipped) == ((0, 1) if reach == "none" else (1, 0))
