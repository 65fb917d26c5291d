from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agentspec.draft import Origin
from agentspec.errors import ConfigError, UnknownRequestError
from agentspec.stages import StageKey
from agentspec.vllm_plugin import planner
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.v1.proposer import ForestProposer, SamplerRoom
from tests.vllm_plugin.support.runner import EOS, MAX_MODEL_LEN, VOCAB_SIZE, Runner, request, vllm_config

STAGE = StageKey.parse("sql/write")
TEXT = [*range(100, 140), EOS]
TIMEOUT_S = 60  # prevents hanging


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[ForestProposer] = []

    def make(**settings: Any) -> Runner:
        made.append(ForestProposer(vllm_config(**settings)))
        return Runner(made[-1])

    yield make
    for proposer in made:
        proposer.planner.drafter.close()


@pytest.fixture
def runner(make: Any) -> Runner:
    runner: Runner = make()
    return runner


def learned(runner: Runner, stage: StageKey = STAGE) -> int:
    """Return the number of tokens in the tree of a stage."""
    runner.drafter.settle()
    return runner.drafter.forest.stats(adapted(stage, None)).num_tokens


def wait_for_predictions(runner: Runner) -> None:
    starting = [live.starting for live in runner.drafter.live.values() if live.starting is not None]
    assert not wait(starting, TIMEOUT_S).not_done


def counters(runner: Runner, stage: StageKey = STAGE) -> Any:
    return runner.drafter.stages.all[stage]


def first_run(runner: Runner, name: str = "r0", **tags: Any) -> None:
    """Let a stage learn ``TEXT``."""
    runner.add(request(name, TEXT, stage="sql/write", **tags))
    assert runner.run(name) == len(TEXT)
    runner.step([])  # vLLM reports the end with the next step


def test_a_stage_drafts_what_it_wrote_before(runner: Runner) -> None:
    first_run(runner)
    runner.add(request("r1", TEXT, stage="sql/write"))
    assert runner.run("r1") < 10
    figures = counters(runner)
    assert figures.num_requests == 2
    assert figures.num_output_tokens == 2 * len(TEXT)
    assert figures.num_accepted_tokens + figures.num_steps + 2 == figures.num_output_tokens
    assert sum(figures.accepted_by_source.values()) == figures.num_accepted_tokens > 30
    assert figures.num_prompt_tokens == 6
    runner.drafter.forest.check_integrity()


def test_accepted_tokens_are_counted_by_origin(runner: Runner) -> None:
    forest = runner.drafter.forest
    forest.learn(adapted(STAGE, None), np.array(TEXT, np.int32), origin=Origin.FLEET)
    counted = []
    for name in ("r0", "r1"):
        runner.add(request(name, TEXT, stage="sql/write"))
        runner.run(name)
        runner.step([])  # vLLM reports the end with the next step
        figures = counters(runner)
        counted.append((figures.num_accepted_from_fleet, figures.num_accepted_tokens))
    (from_fleet, accepted), later = counted
    assert from_fleet == accepted > 20
    assert later[0] == from_fleet < later[1]
    assert figures.num_accepted_from_snapshot == 0


def test_a_request_is_finished_when_vllm_says_so_and_not_when_it_is_missing_from_a_step(
    runner: Runner,
) -> None:
    runner.add(request("r0", TEXT), request("r1", TEXT))
    runner.step()
    runner.step(["r1"])  # r0 was preempted, or not scheduled
    assert len(runner.drafter.live) == 2
    runner.step(["r1", "r0"])  # r0 returns in another row
    runner.finish("r0")
    runner.step(["r1"])
    assert len(runner.drafter.live) == 1


def test_skipped_steps_and_moved_rows_lose_no_token(runner: Runner) -> None:
    rng = np.random.default_rng(1)
    texts = {f"r{i}": rng.integers(10, 900, 30).tolist() for i in range(4)}
    runner.add(*(request(name, text, stage=name, max_tokens=30) for name, text in texts.items()))
    while any(len(one.written) < 30 for one in runner.live.values()):
        going = [name for name, one in runner.live.items() if len(one.written) < 30]
        chosen = rng.permutation(going)[: rng.integers(1, len(going) + 1)].tolist()
        runner.step(chosen)
    runner.finish(*texts)
    runner.step([])
    forest = runner.drafter.forest
    for name, text in texts.items():
        forest.start("probe", StageKey.parse(name), np.array(text[:5], np.int32))
        assert learned(runner, StageKey.parse(name)) == 30
        forest.finish("probe")
    forest.check_integrity()


def test_rows_whose_prompt_is_read_in_chunks_are_not_touched(runner: Runner) -> None:
    runner.add(request("r0", TEXT, stage="sql/write"))
    assert runner.step(chunk=True) == {"r0": []}
    assert runner.step(chunk=True) == {"r0": []}
    assert counters(runner).num_output_tokens == 0
    runner.step()
    assert (counters(runner).num_output_tokens, counters(runner).num_steps) == (1, 0)


def test_a_request_near_the_end_of_its_context_costs_only_itself(runner: Runner) -> None:
    first_run(runner)
    for name in ("r1", "r2"):  # the stage must have learned that such drafts are right
        runner.add(request(name, TEXT, stage="sql/write"))
        runner.run(name)
    long_prompt = np.random.default_rng(2).integers(200, 900, MAX_MODEL_LEN - 4).tolist()
    runner.add(request("long", TEXT[:4], prompt=long_prompt, stage="sql/write"))
    runner.add(request("short", TEXT, stage="sql/write"))
    longest = {"long": 0, "short": 0}
    for _ in range(3):
        for name, draft in runner.step().items():
            longest[name] = max(longest[name], len(draft))
    assert longest["long"] <= 2  # at most the tokens that still fit, with the model's own token
    assert longest["short"] == 8


def test_no_draft_goes_beyond_max_tokens(runner: Runner) -> None:
    first_run(runner)
    runner.add(request("r1", TEXT[:6], stage="sql/write", max_tokens=6))
    while len(runner.live["r1"].written) < 6:
        draft = runner.step()["r1"]
        assert len(runner.live["r1"].written) + len(draft) < 6 or not draft


def test_what_was_sampled_behind_a_stop_token_is_not_learned(runner: Runner) -> None:
    proposer = runner.proposer
    runner.add(request("r0", [100, 101, EOS, 55, 56], stage="sql/write", stop_token_ids=[300]))
    runner.live["r0"].draft = [100, 101, EOS, 55]  # as if drafted and accepted in one step
    assert runner.step() == {"r0": []}
    assert learned(runner) == 3
    assert counters(runner).num_output_tokens == 3  # nor counted
    runner.add(request("r1", [100, 300, 101], stage="sql/other", stop_token_ids=[300]))
    runner.live["r1"].draft = [100, 300]
    runner.step(["r1"])
    assert learned(runner, StageKey.parse("sql/other")) == 2
    proposer.planner.drafter.forest.check_integrity()


def test_tenants_share_nothing(runner: Runner) -> None:
    first_run(runner, tenant="acme")
    runner.add(request("r1", TEXT, stage="sql/write", tenant="other"))
    assert runner.run("r1") == len(TEXT)
    assert set(runner.drafter.stages.all) == {
        StageKey("acme", STAGE.path),
        StageKey("other", STAGE.path),
    }


def test_adapters_share_nothing_with_each_other_or_the_model(runner: Runner) -> None:
    first_run(runner)
    for name in ("red", "blue"):
        runner.add(request(name, TEXT, stage="sql/write", adapter=name))
        assert runner.run(name) == len(TEXT)
    runner.add(request("again", TEXT, stage="sql/write", adapter="red"))
    assert runner.run("again") < 10
    assert set(runner.drafter.stages.all) == {STAGE}  # counted as one stage
    assert set(runner.drafter.adapters) == {None, "red", "blue"}
    assert runner.drafter.forest.stats(adapted(STAGE, "red")).num_tokens >= len(TEXT)


def test_a_request_that_must_not_be_learned_is_not(runner: Runner) -> None:
    first_run(runner, learn=0)
    assert learned(runner) == 0


def test_a_request_can_have_shorter_drafts_or_none(runner: Runner) -> None:
    first_run(runner)
    for limit in (0, 3):
        runner.add(request(f"r{limit}", TEXT, stage="sql/write", max_draft=limit, learn=0))
        longest = 0
        while len(runner.live[f"r{limit}"].written) < len(TEXT):
            longest = max(longest, len(runner.step([f"r{limit}"])[f"r{limit}"]))
        assert longest == limit


def test_sessions_draft_from_what_they_wrote(runner: Runner) -> None:
    runner.add(request("r0", TEXT, stage="a/plan", session="s"))
    runner.run("r0")
    runner.step([])
    runner.add(request("r1", TEXT, stage="b/act", session="s", tenant="default"))
    runner.run("r1")
    assert "SESSION" in {
        source.name for source in counters(runner, StageKey.parse("b/act")).accepted_by_source
    }


def test_ids_that_are_no_tokens_of_the_model_are_never_drafted(runner: Runner) -> None:
    prompt = [5, 6, VOCAB_SIZE + 3, 8, -1, 9]
    runner.add(request("r0", [5, 6, 8, 9, 5, 6, 8], prompt=prompt))
    for _ in range(4):
        for draft in runner.step().values():
            assert all(0 <= token < VOCAB_SIZE for token in draft)


def test_a_prompt_of_embeddings_has_no_tokens(runner: Runner) -> None:
    runner.add(request("r0", TEXT, prompt=None))
    assert runner.run("r0") == len(TEXT)


def test_requests_that_generate_nothing_are_passed_over(runner: Runner) -> None:
    runner.add(request("r0", TEXT))
    runner.live["r0"].sampling_params = None
    assert runner.step() == {"r0": []}
    assert len(runner.drafter.live) == 0


def test_the_next_input_of_a_streaming_session_begins_anew(runner: Runner) -> None:
    runner.add(request("r0", TEXT, stage="sql/write"))
    runner.step()
    runner._seen.clear()  # vLLM lists it as new again, with a longer prompt
    runner.live["r0"] = request("r0", TEXT, prompt=[1, 2, 3, 100, 4, 5], stage="sql/write")
    runner.step()
    assert len(runner.drafter.live) == 1
    runner.drafter.forest.check_integrity()


def test_a_proposer_that_was_not_attached_drafts_nothing(runner: Runner) -> None:
    proposer = ForestProposer(vllm_config())  # of a worker that vLLM takes no drafts from
    drafts = proposer.propose([[1], []], np.array([4, 2], np.int32), np.ones((2, 9), np.int32))
    assert drafts == [[], []]
    proposer.planner.drafter.close()


def test_a_failing_forest_costs_drafts_and_no_answer(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first_run(runner)
    runner.add(request("r1", TEXT, stage="sql/write"))

    def broken(*_: object) -> None:
        raise UnknownRequestError("broken")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(planner, "RowStep", broken)
        for _ in range(10):
            assert runner.step() == {"r1": []}
    assert len(caplog.records) == 4  # not one per step
    assert runner.run("r1") == len(TEXT) - 10  # its text has a gap: it drafts no more
    runner.step([])
    assert learned(runner) == len(TEXT)
    assert counters(runner).num_output_tokens == 2 * len(TEXT) - 10
    runner.add(request("r2", TEXT, stage="sql/write"))
    assert runner.run("r2") < 10


def test_a_row_that_vllm_shortened_drafts_and_learns_no_more(runner: Runner) -> None:
    first_run(runner)
    runner.add(request("r1", TEXT, stage="sql/write"))
    runner.step()
    del runner.live["r1"].written[-1:]  # as after a failed load of its cache
    runner.live["r1"].draft = []
    assert runner.step() == {"r1": []}
    assert runner.step() == {"r1": []}
    runner.finish("r1")
    runner.step([])
    assert learned(runner) <= len(TEXT) + 2


def test_a_step_verifies_what_the_sampler_has_room_for(runner: Runner) -> None:
    first_run(runner)
    runner.proposer._room = SamplerRoom(most=4, most_penalized=1)
    runner.add(*(request(f"r{i}", TEXT, stage="sql/write") for i in range(3)))
    sums = [sum(map(len, runner.step().values())) for _ in range(4)]
    assert max(sums) == 4
    runner.no_penalties = False
    assert not any(runner.step().values())


GIB = 1 << 30
QWEN = 151_936  # words of the vocabulary


def test_the_room_of_a_server() -> None:
    # 26 bytes a word and draft token, 48 with penalties: 1 GiB holds 271 and, less the trial run's share, 147
    room = SamplerRoom.of_server(64, 8192, QWEN, GIB)
    assert room == SamplerRoom(64 + GIB // (26 * QWEN), (GIB // QWEN + 26 * 64) // 48)
    # the trial run already has more draft tokens than their penalties have room for
    assert SamplerRoom.of_server(1024, 8192, QWEN, GIB).most_penalized == GIB // (22 * QWEN) == 321
    assert SamplerRoom.of_server(1024, 256, QWEN, GIB).most == 256 + 271


@pytest.mark.parametrize(
    ("lengths", "num_copied", "kept"),
    [
        ([], 0, []),
        ([], 5, []),
        ([5, 9, 6], 0, [5, 9, 6]),
        ([32, 3, 0, 9, 1], 0, [8, 3, 0, 8, 1]),  # the longest are cut to a common length
        ([32, 3, 0, 9, 1], 1, [2, 2, 0, 2, 1]),
        ([5] * 30, 0, [0] * 30),  # no equal share fits
        ([9], 10_000, [2]),  # 20,000 copied tokens
        ([9, 9], 30_000, [0, 0]),
    ],
)
def test_the_longest_drafts_are_cut(lengths: list[int], num_copied: int, kept: list[int]) -> None:
    assert SamplerRoom(most=20, most_penalized=9).allowed(lengths, num_copied) == kept


def test_the_price_is_measured_unless_it_is_set(make: Any) -> None:
    assert make(price=0.25).proposer.planner.drafter.price == 0.25
    runner = make(price=None)
    before = runner.drafter.price
    first_run(runner)
    runner.add(request("r1", TEXT, stage="sql/write"))
    runner.run("r1")
    assert 0 <= runner.drafter.price <= 1
    assert runner.drafter.price != before


def test_without_a_tokenizer_a_request_goes_without_its_prediction(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    first_run(runner)
    runner.add(request("r1", TEXT, stage="sql/write", prediction="SELECT 1"))
    runner.step()
    wait_for_predictions(runner)
    assert "skip-tokenizer-init" in caplog.text
    assert runner.run("r1") < 12
    runner.step([])
    assert learned(runner) == 2 * len(TEXT)
    assert runner.drafter.forest.stats().num_requests == 0


def test_a_stage_name_as_long_as_may_be_has_trees_and_figures(runner: Runner) -> None:
    name = "s" * 255
    for number in range(2):
        runner.add(request(f"r{number}", TEXT, stage=name))
        num_steps = runner.run(f"r{number}")
        runner.step([])
    assert num_steps < 10
    assert learned(runner, StageKey.parse(name)) == 2 * len(TEXT)


def test_a_prediction_is_a_source_of_drafts(make: Any) -> None:
    runner: Runner = make()
    runner.drafter.texts.encode = lambda text: np.array(TEXT, np.int32)
    runner.add(request("r0", TEXT, stage="sql/write", prediction="..."))
    runner.step()
    wait_for_predictions(runner)
    assert runner.run("r0") < 12


def test_a_request_may_end_before_its_prediction_was_read(runner: Runner) -> None:
    """The first request ends while its prediction is read, the others while theirs wait."""
    is_reading, may_read = threading.Event(), threading.Event()

    def encode(text: str) -> NDArray[np.int32]:
        is_reading.set()
        assert may_read.wait(TIMEOUT_S)
        return np.array(TEXT, np.int32)

    runner.drafter.texts.encode = encode
    runner.add(*(request(f"r{i}", TEXT, prediction="SELECT 1") for i in range(5)))
    runner.step()
    assert is_reading.wait(TIMEOUT_S)
    runner.finish(*list(runner.live))
    runner.step([])
    assert len(runner.drafter.live) == 0
    may_read.set()
    runner.drafter.close()  # waits until all are read
    assert runner.drafter.forest.stats().num_requests == 0


def test_a_request_may_end_in_the_step_after_its_prediction_was_read(runner: Runner) -> None:
    """The prediction was read between the steps: no step has entered the request yet."""
    may_read = threading.Event()

    def encode(text: str) -> NDArray[np.int32]:
        assert may_read.wait(TIMEOUT_S)
        return np.array(TEXT, np.int32)

    runner.drafter.texts.encode = encode
    runner.add(request("r0", TEXT, prediction="SELECT 1"))
    runner.step()
    may_read.set()
    wait_for_predictions(runner)
    assert runner.drafter.forest.stats().num_requests == 1
    runner.finish("r0")
    runner.step([])
    assert runner.drafter.forest.stats().num_requests == 0


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="stage_budget"):
        ForestProposer(vllm_config(stage_budget=1))
