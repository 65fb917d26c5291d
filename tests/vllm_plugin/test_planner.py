"""The planner: its steps run later, on a device, and what came of them is read later still."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.planner import StepPlanner
from agentspec.vllm_plugin.v2.model_drafts import ModelDrafts
from tests.vllm_plugin.support.device import MAX_ROWS, Device
from tests.vllm_plugin.support.runner import EOS, request, vllm_config

STAGE = StageKey.parse("sql/write")
TEXT = [*range(100, 140), EOS]


@pytest.fixture
def make() -> Iterator[Callable[..., Device]]:
    made: list[ForestDrafter] = []

    def make(
        lag: int = 1, model: Callable[[Any], list[int]] | None = None, num_model: int = 0, **settings: Any
    ) -> Device:
        made.append(ForestDrafter(vllm_config(**settings)))
        drafts = ModelDrafts(num_model) if num_model else None
        return Device(StepPlanner(made[-1], MAX_ROWS, model=drafts), lag, model)

    yield make
    for drafter in made:
        drafter.close()


@pytest.fixture
def device(make: Callable[..., Device]) -> Device:
    return make()


def figures(device: Device, stage: StageKey = STAGE) -> Any:
    device.planner.drafter.settle()
    return device.planner.drafter.stages.all[stage]


def learned(device: Device, stage: StageKey = STAGE) -> int:
    device.planner.drafter.settle()
    return device.planner.drafter.forest.stats(adapted(stage, None)).num_tokens


def first_run(device: Device) -> None:
    device.add(request("r0", TEXT, stage="sql/write"))
    assert device.run("r0") == len(TEXT)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_steps_in_flight_draft_from_all_that_was_written(make: Callable[..., Device], lag: int) -> None:
    device = make(lag)
    first_run(device)
    device.add(*(request(f"r{i}", TEXT, stage="sql/write") for i in range(1, 5)))
    num_steps = 0
    while any(len(one.written) < len(TEXT) for one in device.live.values()):
        device.step()
        num_steps += 1
    device.wait()
    assert num_steps < 12
    device.finish(*list(device.live))
    device.step([])
    counted = figures(device)
    assert counted.num_output_tokens == 5 * len(TEXT)
    assert counted.num_accepted_tokens > 4 * 30
    assert counted.num_accepted_tokens <= counted.num_draft_tokens
    assert counted.decode_s > 0
    assert learned(device) == 5 * len(TEXT)
    device.planner.drafter.forest.check_integrity()


def right(one: Any) -> list[int]:
    """Return the draft of a model that is always right."""
    rest: list[int] = one.output[len(one.written) :]
    return [*rest, *[0] * 4]


def wrong(one: Any) -> list[int]:
    """Return the draft of a model that is never right."""
    return [7] * 4


@pytest.mark.parametrize("lag", [0, 1])
def test_a_draft_model_drafts_what_no_tree_knows(make: Callable[..., Device], lag: int) -> None:
    device = make(lag, right, num_model=3)
    device.add(request("r0", TEXT, stage="sql/write"))
    assert device.run("r0") < len(TEXT) / 2.5
    device.step([])
    counted = figures(device)
    assert counted.num_output_tokens == len(TEXT)
    assert counted.accepted_by_source[Source.MODEL] > 20
    assert counted.num_accepted_from_shared == 0
    assert learned(device) == len(TEXT)


def test_the_trees_draft_where_the_model_is_wrong(make: Callable[..., Device]) -> None:
    device = make(0, wrong, num_model=3)
    for number in range(8):
        device.add(request(f"r{number}", TEXT, stage="sql/write"))
        device.run(f"r{number}")
    device.add(request("last", TEXT, stage="sql/write"))
    assert device.run("last") < 10
    counted = figures(device)
    assert counted.accepted_by_source.get(Source.MODEL, 0) == 0
    assert counted.accepted_by_source[Source.STAGE] > 200


def test_the_scheduler_knows_the_lengths_and_chances_of_the_models_drafts(
    make: Callable[..., Device],
) -> None:
    device = make(0, right, num_model=3)
    device.add(request("r0", TEXT, stage="sql/write"))
    for _ in range(5):
        device.step()
    device.wait()
    assert device.planned is not None
    assert device.planned.num_model == 3
    drafted = device.planner.drafted(device.planned)
    assert drafted is not None
    assert drafted.lengths == [3]
    chances = drafted.acceptance[0]
    assert 1 > chances[0] > chances[1] > chances[2] > 0.2
    assert not chances[3:].any()
    assert device.planner.last_lengths(1.0) == {"r0": 3}


def test_python_waits_for_no_step(device: Device) -> None:
    device.add(request("r0", TEXT, stage="sql/write"))
    for _ in range(3):
        device.step()
    assert figures(device).num_output_tokens == 2  # the third is in flight
    device.wait()
    assert figures(device).num_output_tokens == 3


def test_the_lengths_of_drafts_are_without_padding(device: Device) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"), request("r2", [*range(500, 540)], stage="other"))
    device.step()
    assert device.planner.last_lengths(0.0) == {}  # it has not run
    device.step()
    device.wait()
    lengths = device.planner.last_lengths(1.0)
    assert 0 < lengths["r1"] < 8
    assert lengths["r2"] == 0


def test_the_scheduler_knows_what_is_likely_to_be_accepted(device: Device) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"), request("r2", [*range(500, 540)], stage="other"))
    device.step()
    device.wait()
    assert device.planned is not None
    drafted = device.planner.drafted(device.planned)
    assert drafted is not None
    assert drafted.names == ["r1", "r2"]
    assert drafted.price == device.planner.drafter.price
    assert drafted.acceptance.shape == device.planner.drafts[:2].shape
    ours, other = drafted.acceptance
    assert np.count_nonzero(ours) == drafted.lengths[0] > 0
    assert np.all(ours[1:] <= ours[:-1])
    assert not other.any()


@pytest.mark.parametrize("lag", [0, 1])
def test_a_preempted_request_continues_where_it_stopped(make: Callable[..., Device], lag: int) -> None:
    device = make(lag)
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"))
    device.step()
    device.step()
    device.wait()
    device.preempt("r1")
    device.step([])
    assert len(device.planner.drafter.live) == 1
    assert device.run("r1") < 8
    assert figures(device).num_requests == 2
    assert figures(device).num_output_tokens == 2 * len(TEXT)


def test_a_preempted_request_that_comes_back_with_another_text_drafts_no_more(device: Device) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"))
    device.step()
    device.wait()
    device.preempt("r1")
    device.step([])
    device.live["r1"].written = []  # the scheduler dropped what the last step sampled
    assert device.run("r1") == len(TEXT)


def test_a_request_whose_cache_failed_to_load_drafts_no_more(device: Device) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"), request("r2", TEXT, stage="sql/write"))
    device.step(chunk=True)
    device.num_computed = {"r1": 1, "r2": 1}  # of three: their prompts are being read
    device.step()
    device.wait()
    device.num_computed = {"r1": 1}  # vLLM drops what it sampled, and reads the prompt again
    device.step(chunk=True)
    device.num_computed = {}
    device.wait()
    device.live["r1"].written = []
    assert device.run("r2") < 10
    assert device.run("r1") == len(TEXT)


def test_requests_may_end_while_they_are_in_flight(device: Device) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"), request("r2", TEXT, stage="sql/write"))
    device.step()
    device.finish("r1")
    device.step()
    device.step()
    device.wait()
    assert len(device.planner.drafter.live) == 1
    assert device.run("r2") < 10


def test_the_next_input_of_a_streaming_session_begins_anew(device: Device) -> None:
    device.add(request("r0", TEXT, stage="sql/write"))
    device.step()
    device.step()
    device.wait()
    device._seen.clear()
    device.live["r0"] = request("r0", TEXT, prompt=[1, 2, 3, 100, 4, 5], stage="sql/write")
    device.step()
    device.wait()
    assert len(device.planner.drafter.live) == 1
    assert figures(device).num_requests == 2


def test_a_prompt_that_is_read_in_chunks_has_no_samples(device: Device) -> None:
    device.add(request("r0", TEXT, stage="sql/write"))
    device.step(chunk=True)
    device.step(chunk=True)
    device.wait()
    assert figures(device).num_output_tokens == 0
    assert device.run("r0") == len(TEXT)


def test_a_failed_step_costs_drafts_and_no_answer(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write", trace="t"))
    device.step()
    device.wait()
    with caplog.at_level(logging.ERROR):
        planned = device.planner.plan(["r1"], np.zeros(0, np.int32), np.zeros((1, 9), np.int64))
    assert planned is None
    assert "could not be planned" in caplog.text
    assert device.planner.drafter.traces.of("default", "t") is None
    device.live["r1"].draft = []
    assert device.run("r1") == len(TEXT) - 1
    device.add(request("r2", TEXT, stage="sql/write"))
    assert device.run("r2") < 10


def test_a_step_that_fails_on_the_device_is_logged(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write"))
    device.step()
    device._queue[-1].planned = None
    planned = device.planner._flying[-1]
    device._queue[-1].num_sampled[:] = 99
    planned.step.run()
    with caplog.at_level(logging.ERROR):
        device.planner.observe()
    assert "99 tokens" in caplog.text
    device.wait()
    device.live["r1"].draft = []
    assert device.run("r1") >= len(TEXT) - 2


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_steps_of_a_trace_put_together_are_the_output(make: Callable[..., Device], lag: int) -> None:
    device = make(lag)
    first_run(device)
    device.add(request("r1", TEXT, stage="sql/write", trace="t"), request("r2", TEXT, stage="sql/write"))
    while any(len(one.written) < len(TEXT) for one in device.live.values()):
        device.step()
    device.wait()
    trace = device.planner.drafter.traces.of("default", "t")
    assert trace is not None
    written: list[int] = []
    for step in trace.steps:
        written += step.draft[: step.num_accepted].tolist()
        written += [] if step.own is None else [step.own]
    assert written == TEXT
    assert len(trace.steps) < 12
    device.finish("r1")
    device.step()
    assert not device.planner.drafter.traces.live


def test_a_prompt_of_embeddings_has_a_length_but_no_tokens(device: Device) -> None:
    device.add(request("r0", TEXT, prompt=None, stage="sql/write"))
    assert device.run("r0") == len(TEXT)


def test_the_thread_is_measured(device: Device) -> None:
    first_run(device)
    assert device.planner.timing.num_steps == len(TEXT)
    assert device.planner.drafter.timing.num_steps == len(TEXT)
    assert device.planner.timing.total_s > 0


def test_what_a_grammar_dictates_is_drafted_in_the_step_it_was_found_for(make: Callable[..., Device]) -> None:
    device = make(lag=0)
    device.add(request("r", TEXT, stage="sql/write"))
    device.planner.expect({"r": TEXT[:6]})
    device.step()
    assert device.planner.last_lengths(1.0) == {"r": 5}
    device.step()
    assert device.live["r"].written == TEXT[:7]
    assert device.planner.last_lengths(1.0) == {"r": 0}  # it was found for one step
    device.planner.expect({"r": [*TEXT[7:9], 800]})
    device.step()
    device.planner.expect(None)
    device.step()
    assert device.live["r"].written == TEXT[: 8 + 2]
    device.finish("r")
    device.step([])
    counted = figures(device)
    assert (counted.num_draft_tokens, counted.num_accepted_tokens) == (0, 0)  # no tree drafted them
