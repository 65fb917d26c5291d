"""Outputs that engines share, under both model runners, without vLLM."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.corpus.batch import Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.outbox import Entry, FinishedOutput, OutputQueue
from agentspec.corpus.store import open_store
from agentspec.errors import ConfigError
from agentspec.forest.sessions import session_hash
from agentspec.stages import StageKey
from agentspec.tags import subject_hash
from agentspec.vllm_plugin.commands import Commands
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.settings import PluginSettings
from tests.corpus.support.redis_server import running
from tests.corpus.support.replica import stored
from tests.vllm_plugin.support.device import Device
from tests.vllm_plugin.support.engines import Engine, tokens_of, v1, v2, wait_for
from tests.vllm_plugin.support.runner import EOS, request, vllm_config

STAGE = StageKey("acme", ("sql", "write"))
TEXT = [*range(100, 140), EOS]
TIMEOUT_S = 60.0


@pytest.fixture(params=[v1, v2])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def start() -> Iterator[tuple[Engine, ForestDrafter]]:
        engine, drafter = request.param(vllm_config(corpus=str(tmp_path / "corpus")))
        drafter.texts.__dict__["vocabulary"] = "test"
        drafter.open_corpus()
        try:
            yield engine, drafter
        finally:
            drafter.close()

    return start


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    """Return the list of what is published from now on."""
    seen: list[Output] = []

    def put(_: OutputQueue, entry: Entry) -> None:
        seen.append(FinishedOutput(*entry).output)

    monkeypatch.setattr(OutputQueue, "put", put)
    return seen


def run(engine: Engine, name: str, text: list[int] = TEXT, **options: Any) -> int:
    engine.add(request(name, text, stage=STAGE.name, tenant=STAGE.tenant, **options))
    num_steps = engine.run(name)
    engine.step([])
    return num_steps


def test_what_one_engine_learned_another_drafts(start):
    with start() as (first, _), start() as (second, others):
        assert run(first, "r0") == len(TEXT)
        wait_for(lambda: tokens_of(others, STAGE) == len(TEXT))
        assert run(second, "r0") < len(TEXT) / 2
    with start() as (later, drafter):
        wait_for(lambda: tokens_of(drafter, STAGE) >= len(TEXT))
        assert run(later, "r0") < len(TEXT) / 2


def test_the_corpus_gets_what_the_trees_learned(start, published):
    with start() as (engine, drafter):
        run(engine, "r0")
        run(engine, "r1", subject=subject_hash("acme", "ann").hex(), session="run")
        run(engine, "r2", adapter="red")
        run(engine, "r3", learn=0)
        run(engine, "r4", max_draft=0)
        assert tokens_of(drafter, STAGE) == 3 * len(TEXT)
    assert [output.tokens.tolist() for output in published] == [TEXT] * 4
    assert [output.stage for output in published] == [
        adapted(STAGE, one) for one in (None, None, "red", None)
    ]
    assert [output.subject for output in published] == [b"", subject_hash("acme", "ann"), b"", b""]
    assert [output.session for output in published] == [b"", session_hash("acme", "run"), b"", b""]


def test_a_shared_model_learns_nothing_of_a_person(start):
    with start() as (engine, drafter):
        for number in range(3):
            run(engine, f"r{number}", subject=subject_hash("acme", "ann").hex())
        before = set(drafter.forest.model_states())
        for number in range(3, 6):
            run(engine, f"r{number}")
        assert len(before) == 1  # the prior
        assert set(drafter.forest.model_states()) != before


def test_after_a_gap_nothing_is_learned_or_shared(start, published):
    with start() as (engine, drafter):
        engine.add(request("r0", TEXT, stage=STAGE.name, tenant=STAGE.tenant))
        for _ in range(3):
            engine.step()
        if isinstance(engine, Device):
            engine.wait()
        drafter.lose_step(["r0"])
        engine.run("r0")
        engine.step([])
        assert tokens_of(drafter, STAGE) == 3
    assert [output.tokens.tolist() for output in published] == [TEXT[:3]]


def test_an_output_that_ends_before_its_prediction_is_read_is_not_shared(start, published):
    with start() as (engine, drafter):
        drafter.texts.encode = lambda text: time.sleep(1)
        engine.add(request("r0", TEXT[:2], stage=STAGE.name, tenant=STAGE.tenant, prediction="x"))
        engine.run("r0")
        engine.step([])
        assert tokens_of(drafter, STAGE) == 0
    assert published == []


def test_past_outputs_are_shared(start, published):
    with start() as (_, drafter):
        drafter.texts.encode = lambda text: np.array([ord(one) for one in text], np.int32)
        commands = Commands(drafter)
        outputs = [{"stage": STAGE.name, "response": "SELECT 1"}]
        commands.run("warm", json.dumps({"tenant": "acme", "outputs": outputs}), "job")
        wait_for(lambda: json.loads(commands.run("job", "{}", "job")).get("num_outputs") == 1)
        commands.close()
    (output,) = published
    assert output.stage == STAGE
    assert bytes(output.tokens.tolist()) == b"SELECT 1"


def test_the_status_has_the_figures(start):
    with start() as (engine, drafter):
        commands = Commands(drafter)
        run(engine, "r0")
        wait_for(lambda: json.loads(commands.run("status", "{}"))["corpus"]["num_published"] == 1)
        commands.close()


def test_trees_of_a_corpus_are_neither_saved_nor_loaded(start, tmp_path):
    with start() as (_, drafter):
        commands = Commands(drafter)
        for command in ("save", "load"):
            commands.run(command, json.dumps({"path": str(tmp_path / "forest")}), command)
            wait_for(lambda command=command: "job" not in json.loads(commands.run("job", "{}", command)))
        commands.close()
    assert not (tmp_path / "forest").exists()


def test_without_a_corpus_no_output_is_kept():
    engine, drafter = v1(vllm_config())
    drafter.open_corpus()
    assert drafter.corpus is None
    engine.add(request("r0", TEXT, stage=STAGE.name, tenant=STAGE.tenant))
    engine.step()
    assert drafter.rows.remove("r0").output.tolist() == []
    drafter.close()


def test_settings(tmp_path):
    place = str(tmp_path / "corpus")
    assert PluginSettings.read({"agentspec": {"corpus": place}}).corpus == place
    assert PluginSettings(corpus=place).keeps_outputs
    assert not list(tmp_path.iterdir())
    for file in ({"forest_file": str(tmp_path / "forest")}, {"forest_folder": str(tmp_path)}):
        with pytest.raises(ConfigError, match="can't be used with corpus"):
            PluginSettings(corpus=place, **file)
    for bad in ("", "http://host", 5):
        with pytest.raises(ConfigError, match="corpus"):
            PluginSettings(corpus=bad)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"corpus_stages": {"a": "none"}}, "corpus_stages has no effect without corpus"),
        (
            {"corpus": "here", "corpus_stages": {"a": "host"}},
            "corpus_stages.a: must be 'none' or 'fleet', not 'host'",
        ),
        (
            {"corpus": "here", "corpus_snapshots": "s3://b"},
            "'corpus_snapshots' was removed: snapshots are in",
        ),
        ({"corpus": "redis://store", "corpus_host": "here"}, "'corpus_host' was removed: set"),
    ],
)
def test_a_place_that_is_none(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        PluginSettings.of(given)


def test_stages_that_are_not_shared_are_not_in_the_store(tmp_path):
    """Also those without a workflow, which have another path here."""
    stages = {"corpus_stages": {"sql": "none", "plan": "none"}}
    paths = [adapted(StageKey.parse(name, "acme"), None) for name in ("sql/write", "plan", "open")]
    with running(tmp_path) as port:
        _, drafter = v1(vllm_config(corpus=f"redis://127.0.0.1:{port}/0", **stages))
        drafter.texts.__dict__["vocabulary"] = "test"
        drafter.open_corpus()
        for stage in paths:
            drafter.corpus.share(stage, np.array([1, 2], np.int32))
        drafter.close()
        assert stored_stages(f"redis://127.0.0.1:{port}/0") == {paths[2]}


def stored_stages(place: str) -> set[StageKey]:
    with closing(open_store(place)) as store:
        batches = stored(BatchLog(store, "test"), "acme")
    return {record.stage for batch in batches for record in batch.records if isinstance(record, Output)}
