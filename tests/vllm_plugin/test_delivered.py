"""What clients received of outputs is all that is learned, shared, counted and traced: both model runners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from agentspec.corpus.batch import Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.outbox import Entry, FinishedOutput, OutputQueue
from agentspec.corpus.store import open_store
from agentspec.stages import StageKey
from agentspec.tags import subject_hash
from agentspec.vllm_plugin.delivery import Delivered, StopStrings, call_of
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.lora import adapted
from tests.corpus.support.redis_server import running
from tests.corpus.support.replica import stored
from tests.vllm_plugin.support.engines import Engine, output_of, tokens_of, v1, v2, wait_for
from tests.vllm_plugin.support.runner import EOS, request, vllm_config

STAGE = StageKey("acme", ("sql", "write"))
TEXT = [*range(100, 180), EOS]
ALL = len(TEXT)


def piece_of(token: int) -> str:
    return "" if token == EOS else f"{token} "


class Case(NamedTuple):
    """A request, what its client receives of ``TEXT``, and after how many steps it breaks off, if it does."""

    options: dict[str, Any]
    num_whole: int
    num_counted: int
    num_steps: int | None = None


CASES = {
    "the end": Case({}, ALL, ALL),
    "the end of a response": Case({"is_stream": False}, ALL, ALL),
    "a limit": Case({"max_tokens": 5}, 5, 5),
    "a stop token": Case({"stop_token_ids": [104]}, 5, 5),
    "a stop string": Case({"stop": ["110 "]}, 10, 11),
    "one in a response": Case({"stop": ["110 "], "is_stream": False}, 10, 11),
    "one of several tokens": Case({"stop": ["110 111 112 "]}, 10, 13),
    "one that begins within a token": Case({"stop": ["0 11"]}, 10, 12),
    "one that ends within a token": Case({"stop": ["110 11"]}, 10, 12),
    "the first of two": Case({"stop": ["120 ", "110 "]}, 10, 11),
    "the first token": Case({"stop": ["100"]}, 0, 1),
    "behind the least tokens": Case({"stop": ["1"], "min_tokens": 3}, 3, 4),
    "one that the client gets": Case({"stop": ["110 "], "is_stop_included": True}, 11, 11),
    "part of a token that it gets": Case({"stop": ["110 11"], "is_stop_included": True}, 11, 12),
    "none of the stop strings": Case({"stop": ["x"]}, ALL, ALL),
    "none before a limit": Case({"stop": ["110 "], "max_tokens": 9}, 9, 9),
    "not learned": Case({"stop": ["110 "], "learn": 0}, 0, 11),
    "a stream that breaks off": Case({}, 0, ALL, 5),
    "one with stop strings": Case({"stop": ["x"]}, 0, 0, 5),
    "a response that breaks off": Case({"is_stream": False}, 0, 0, 5),
    "behind the stop string": Case({"stop": ["102 "]}, 2, 3, 8),
}


@pytest.fixture(params=[v1, v2])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return a function for ``with start(place) as (engine, drafter)``."""

    @contextmanager
    def start(place: str | None = None, **settings: Any) -> Iterator[tuple[Engine, ForestDrafter]]:
        place = place or str(tmp_path / "corpus")
        engine, drafter = request.param(vllm_config(corpus=place, **settings))
        drafter.texts.__dict__["vocabulary"] = "test"
        drafter.texts.pieces = lambda params, prompt, token_ids: map(piece_of, token_ids)
        drafter.open_corpus()
        try:
            yield engine, drafter
        finally:
            drafter.close()

    return start


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[FinishedOutput]:
    """Return the list of what is given to the corpus from now on."""
    seen: list[FinishedOutput] = []

    def put(_: OutputQueue, entry: Entry) -> None:
        seen.append(FinishedOutput(*entry))

    monkeypatch.setattr(OutputQueue, "put", put)
    return seen


def run(engine: Engine, drafter: ForestDrafter, case: Case, stage: StageKey = STAGE) -> None:
    """Run a case to its end, or until it breaks off. vLLM reports that with the next step."""
    name = stage.name
    engine.add(request(name, TEXT, stage=stage.name, tenant=stage.tenant, **case.options))
    if case.num_steps is None:
        engine.run(name)
    else:
        for _ in range(case.num_steps):
            engine.step()
        engine.finish(name)
    engine.step([])
    drafter.settle()


@pytest.mark.parametrize("name", CASES)
def test_what_was_delivered(start, entries, name):
    """Token by token, then with drafts."""
    with start() as (engine, drafter):
        for stage in (STAGE, StageKey("acme", ("sql", "again"))):
            case = CASES[name]
            run(engine, drafter, case._replace(options={**case.options, "trace": "t"}), stage)
            assert tokens_of(drafter, stage) == case.num_whole
            check_shared(entries, case)
            check_figures(drafter, stage, case)
            entries.clear()
            drafter.forest.learn(adapted(StageKey("acme", ("sql", "other")), None), np.array(TEXT, np.int32))
        drafter.forest.check_integrity()


def check_shared(entries: list[FinishedOutput], case: Case) -> None:
    found = [one.output.tokens.tolist() for one in entries]
    assert found == [TEXT[: case.num_whole]] * (case.num_whole > 0)


def check_figures(drafter: ForestDrafter, stage: StageKey, case: Case) -> None:
    stats = drafter.stages.all[stage]
    trace = drafter.traces.of(stage.tenant, "t")
    traced = [] if trace is None else output_of(trace.steps)
    if case == CASES["a stream that breaks off"]:  # it is counted while it runs
        assert stats.num_output_tokens <= ALL
        assert not traced
        return
    assert stats.num_output_tokens == case.num_counted
    assert stats.num_accepted_tokens == max(0, case.num_counted - 1 - stats.num_steps)
    assert traced == TEXT[: case.num_counted]


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the place of a corpus."""
    if request.param == "sqlite":
        yield str(tmp_path / "corpus")
        return
    with running(tmp_path) as port:
        yield f"redis://127.0.0.1:{port}/0"


def test_what_a_store_holds(start, place):
    subject = subject_hash("acme", "ann").hex()
    stages = [StageKey("acme", ("sql", f"s{number}")) for number in range(len(CASES))]
    with start(place) as (engine, drafter):
        for stage, case in zip(stages, CASES.values(), strict=True):
            run(engine, drafter, case._replace(options={**case.options, "subject": subject}), stage)
        num_learned = sum(case.num_whole > 0 for case in CASES.values())
        wait_for(lambda: drafter.corpus.figures().describe()["num_published"] >= num_learned)
    with closing(open_store(place)) as store:
        batches = stored(BatchLog(store, "test"), "acme")
    outputs = [one for batch in batches for one in batch.records if isinstance(one, Output)]
    found = [[one.tokens.tolist() for one in outputs if one.stage == stage] for stage in stages]
    assert found == [[TEXT[: case.num_whole]] * (case.num_whole > 0) for case in CASES.values()]


class Part(NamedTuple):
    """A request of a call: its options, its steps before it breaks off, and what is learned of it."""

    name: str
    options: dict[str, Any]
    num_steps: int | None
    num_whole: int


RESPONSE: dict[str, Any] = {"is_stream": False}
CALLS = {
    "choices": [Part(f"{i}_chatcmpl-x-0123abcd", RESPONSE, None, ALL) for i in range(3)],
    "prompts": [Part(f"cmpl-x-{i}-0123abc{i}", RESPONSE, None, ALL) for i in range(3)],
    "choices with stop strings": [
        Part("0_chatcmpl-x-0123abcd", {**RESPONSE, "stop": ["110 "]}, None, 10),
        Part("1_chatcmpl-x-0123abcd", {**RESPONSE, "stop": ["x"]}, None, ALL),
    ],
    "choices that break off": [
        Part("0_chatcmpl-x-0123abcd", {**RESPONSE, "stop": ["102 "]}, None, 0),
        Part("1_chatcmpl-x-0123abcd", RESPONSE, 5, 0),
        Part("2_chatcmpl-x-0123abcd", {**RESPONSE, "max_tokens": 3}, None, 0),
    ],
    "prompts that break off": [
        Part("cmpl-x-0-0123abcd", RESPONSE, 5, 0),
        Part("cmpl-x-1-0123abce", RESPONSE, None, 0),
    ],
    "a stream": [  # its client has the choices that ended
        Part("0_chatcmpl-x-0123abcd", {}, None, ALL),
        Part("1_chatcmpl-x-0123abcd", {}, 5, 0),
    ],
    "other calls": [
        Part("chatcmpl-x-1-0123abcd", RESPONSE, None, ALL),
        Part("chatcmpl-x-2-0123abce", RESPONSE, 5, 0),
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_delivered_as_a_whole(start, entries, name):
    parts = CALLS[name]
    with start() as (engine, drafter):
        engine.add(*(request(one.name, TEXT, stage=one.name, tenant="acme", **one.options) for one in parts))
        engine.step()  # all run
        for one in parts:
            if one.num_steps is None:
                engine.run(one.name)
            else:
                for _ in range(one.num_steps):
                    engine.step([one.name])
                engine.finish(one.name)
            engine.step([])
        drafter.settle()
        assert [tokens_of(drafter, StageKey("acme", (one.name,))) for one in parts] == [
            one.num_whole for one in parts
        ]
        assert not drafter._endings._calls
    whole = [len(one.token_ids) for one in entries]
    assert sorted(whole) == sorted(one.num_whole for one in parts if one.num_whole)


def test_a_request_that_could_not_be_started_holds_no_other_up(start, entries, monkeypatch):
    with start() as (engine, drafter):
        first, second = (request(f"{i}_chatcmpl-x-0123abcd", TEXT, is_stream=False) for i in range(2))
        engine.add(first)
        engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(drafter.forest, "start", None)
            engine.add(second)
            engine.step()
        engine.run(first.req_id)
        engine.step([])
        drafter.settle()
        assert not drafter._endings._calls
    assert not entries  # how the other one ended is not known


def test_an_id_that_is_used_again_at_once(start, entries):
    """The next input of a streaming session has the id of the one before."""
    with start() as (engine, drafter):
        for number in range(3):
            run(engine, drafter, CASES["a stop string"])
            engine._seen.discard(STAGE.name)
            assert drafter.stages.all[STAGE].num_output_tokens == 11 * (number + 1)
    assert [len(one.token_ids) for one in entries] == [10] * 3


def test_outputs_are_settled_before_the_end(start, entries):
    with start() as (engine, _):
        engine.add(request("r", TEXT, stage=STAGE.name, tenant=STAGE.tenant, stop=["110 "]))
        engine.run("r")
        engine.step([])
    assert [len(one.token_ids) for one in entries] == [10]


def test_without_a_tokenizer_nothing_is_learned_of_a_request_with_stop_strings(start, entries, caplog):
    with start() as (engine, drafter):
        del drafter.texts.pieces
        run(engine, drafter, CASES["a stop string"])
        assert tokens_of(drafter, STAGE) == 0
    assert not entries
    assert "nothing is learned of the output of 'sql/write'" in caplog.text


@pytest.mark.parametrize(
    ("pieces", "stops", "found"),
    [
        (["ab", "c", "d"], StopStrings(("cd",)), (1, 3)),
        (["ab", "cd", "e"], StopStrings(("d",)), (1, 2)),
        (["a", "", "\N{EURO SIGN}b"], StopStrings(("\N{EURO SIGN}",)), (1, 3)),  # bytes of a character
        (["a", "", "bc", "d"], StopStrings(("d",)), (3, 4)),
        (["aa", "ab", "c"], StopStrings(("aab",)), (0, 2)),
        (["a", "b", "a", "b"], StopStrings(("ab",), min_tokens=2), (2, 4)),
        (["a", "b", "a", "b"], StopStrings(("ba",), min_tokens=2), (1, 3)),
        (["a", "b", "cd"], StopStrings(("bc",), is_included=True), (2, 3)),
        (["a", "b", "c", "d"], StopStrings(("bc",), is_included=True), (3, 3)),
        (["a", "bcd"], StopStrings(("d", "b")), (1, 2)),
        (["a", "bcd"], StopStrings(("d", "b"), is_included=True), (1, 2)),
        (["a", "b"], StopStrings(("c",)), None),
        ([], StopStrings(("c",)), None),
    ],
)
def test_the_first_stop_string(pieces: list[str], stops: StopStrings, found: tuple[int, int] | None) -> None:
    assert stops.find(pieces) == (None if found is None else Delivered(*found))


@pytest.mark.parametrize(
    ("request_id", "call"),
    [
        ("chatcmpl-x-0123abcd", None),
        ("chatcmpl-x-1-0123abcd", None),
        ("resp_x-0123abcd", None),
        ("0-0123abcd", None),
        ("", None),
        ("0_chatcmpl-x-0123abcd", "chatcmpl-x-0123abcd"),
        ("12_chatcmpl-x-0123abcd", "chatcmpl-x-0123abcd"),
        ("cmpl-x-0-0123abcd", "cmpl-x"),
        ("cmpl-x-y-17-0123abcd", "cmpl-x-y"),
        ("3_cmpl-x-1-0123abcd", "cmpl-x"),
    ],
)
def test_the_call_of_a_request(request_id: str, call: str | None) -> None:
    assert call_of(request_id) == call
