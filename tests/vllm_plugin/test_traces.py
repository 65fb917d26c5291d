from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from agentspec.draft import Source
from agentspec.generation import MAX_TRACED_STEPS
from agentspec.stages import StageKey
from agentspec.vllm_plugin.traces import MAX_TRACES, Step, Trace, Traces
from agentspec.vllm_plugin.v1.proposer import ForestProposer
from tests.vllm_plugin.support.engines import output_of
from tests.vllm_plugin.support.runner import EOS, Runner, request, vllm_config

STAGE = StageKey.parse("sql/write")
TEXT = [*range(100, 140), EOS]


@pytest.fixture
def runner() -> Iterator[Runner]:
    proposer = ForestProposer(vllm_config())
    yield Runner(proposer)
    proposer.planner.drafter.close()


def run(runner: Runner, name: str, **tags: Any) -> int:
    """Run a whole request of the stage and return its number of steps."""
    runner.add(request(name, TEXT, stage=STAGE.name, **tags))
    num_steps = runner.run(name)
    runner.step([])
    return num_steps


def steps_of(runner: Runner, trace_id: str, tenant: str = "default") -> list[Step]:
    trace = runner.drafter.traces.of(tenant, trace_id)
    assert trace is not None
    return trace.steps


def test_steps_put_together_are_the_output(runner: Runner) -> None:
    run(runner, "r0")
    num_steps = run(runner, "r1", trace="t1")
    steps = steps_of(runner, "t1")
    assert output_of(steps) == TEXT
    assert len(steps) == num_steps < 10
    assert (steps[0].source, len(steps[0].draft), steps[0].own) == (Source.NONE, 0, TEXT[0])
    assert sum(step.num_accepted for step in steps) > 30
    assert {step.source for step in steps if step.num_accepted} <= set(Source) - {Source.NONE}
    assert not runner.drafter.traces.live


def test_a_trace_changes_no_draft_and_no_figure() -> None:
    figures, num_steps = [], []
    for tags in ({}, {"trace": "t"}):
        runner = Runner(ForestProposer(vllm_config()))
        num_steps.append([run(runner, f"r{i}", **tags) for i in range(3)])
        stats = runner.drafter.stages.all[STAGE]
        figures.append((stats.num_steps, stats.num_output_tokens, stats.accepted_by_source))
        runner.drafter.close()
    assert num_steps[0] == num_steps[1]
    assert figures[0] == figures[1]


def test_untraced_requests_leave_nothing(runner: Runner) -> None:
    run(runner, "r0")
    run(runner, "r1", trace="x" * 129)  # longer than an id of the gateway
    run(runner, "r2", trace=5)
    assert not runner.drafter.traces._kept


@pytest.mark.parametrize(("end", "max_tokens"), [(EOS, None), (102, 4)])
def test_an_output_that_ends_inside_a_draft(runner: Runner, end: int, max_tokens: int | None) -> None:
    output = [100, 101, 103, end, 55, 56]
    runner.add(request("r0", output, trace="t", max_tokens=max_tokens))
    runner.step()
    runner.live["r0"].draft = [101, 103, end, 55]
    runner.step()
    first, last = steps_of(runner, "t")
    assert first.own == 100
    assert (last.draft.tolist(), last.num_accepted, last.own) == ([101, 103, end, 55], 3, None)


def test_a_rejected_draft_shows_what_the_model_wrote_instead(runner: Runner) -> None:
    runner.add(request("past", [100, 101, 300, 301, EOS], stage=STAGE.name))
    runner.run("past")
    runner.add(request("r0", [100, 101, 102, 103], stage=STAGE.name, trace="t"))
    for _ in range(2):
        runner.step()
    last = steps_of(runner, "t")[-1]
    assert last.draft.tolist()[:2] == [101, 300]
    assert (last.num_accepted, last.own) == (1, 102)


def test_rows_that_wait_move_or_read_their_prompt_lose_no_step(runner: Runner) -> None:
    runner.add(request("r0", TEXT, trace="t"), request("r1", TEXT))
    runner.step(chunk=True)
    for names in (["r0", "r1"], ["r1"], ["r1", "r0"], ["r1"]):
        runner.step(names)
    steps = steps_of(runner, "t")
    assert len(steps) == 2
    assert output_of(steps) == runner.live["r0"].written


def test_tenants_find_their_own_and_an_id_its_last_request(runner: Runner) -> None:
    for tenant, text in (("acme", [1, EOS]), ("bolt", [2, 3, EOS])):
        runner.add(request(tenant, text, tenant=tenant, trace="t"))
        runner.run(tenant)
    assert output_of(steps_of(runner, "t", "acme")) == [1, EOS]
    assert output_of(steps_of(runner, "t", "bolt")) == [2, 3, EOS]
    assert runner.drafter.traces.of("default", "t") is None
    runner.add(request("again", [4, EOS], tenant="acme", trace="t"))
    runner.run("again")
    assert output_of(steps_of(runner, "t", "acme")) == [4, EOS]


def test_as_many_are_kept_as_may_be() -> None:
    traces = Traces()
    for number in range(MAX_TRACES + 3):
        traces.begin(f"r{number}", "acme", f"t{number}")
    assert [traces.of("acme", f"t{number}") is None for number in (0, 2, 3)] == [True, True, False]
    assert len(traces._kept) == MAX_TRACES
    trace = Trace()
    for _ in range(MAX_TRACED_STEPS + 1):
        trace.add(Source.NONE, [], [5], 1)
    assert len(trace.steps) == MAX_TRACED_STEPS


def test_a_trace_that_fails_costs_itself_alone(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(runner, "r0")

    def fail(*_: object) -> None:
        raise OSError("broken")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Trace, "add", fail)
        assert run(runner, "r1", trace="t") < 10
    assert runner.drafter.traces.of("default", "t") is None
    assert [record.message for record in caplog.records] == ["the request 'r1' continues without a trace"]


def test_a_trace_with_a_gap_is_none(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.add(request("r0", TEXT, trace="t"))
    runner.step()
    with monkeypatch.context() as patch:
        patch.setattr(runner.drafter, "enter_ready", None)  # the step fails
        runner.step()
    runner.step()
    assert runner.drafter.traces.of("default", "t") is None
    assert runner.run("r0") > 0


def test_a_step_in_words() -> None:
    trace = Trace()
    trace.add(Source.NONE, [1, 2], [1, 9], 2)
    (step,) = trace.steps
    assert step.as_texts(str).describe() == {
        "source": None,
        "tokens": ("1", "2"),
        "parents": (-1, 0),
        "accepted": (0,),
        "own": "9",
    }


@pytest.mark.parametrize(
    ("num_tokens", "kept"),
    [(0, []), (1, [(0, 5)]), (2, [(0, 5), (1, None)]), (3, [(0, 5), (2, None)]), (4, [(0, 5), (2, 8)])],
)
def test_a_trace_is_cut_to_what_was_delivered(num_tokens: int, kept: list[tuple[int, int | None]]) -> None:
    trace = Trace()
    trace.add(Source.NONE, [], [5], 1)
    trace.add(Source.STAGE, [6, 7, 1], [6, 7, 8], 3)
    trace.cut(num_tokens)
    assert [(step.num_accepted, step.own) for step in trace.steps] == kept


def test_a_held_trace_is_read_once_it_is_kept() -> None:
    traces = Traces()
    trace = traces.begin("a", "acme", "t", is_held=True)
    trace.add(Source.NONE, [], [5], 1)
    before = traces.of("acme", "t")
    assert before is not None
    assert not before.steps
    traces.keep("acme", "t", trace)
    assert traces.of("acme", "t") is trace
    traces.forget(trace)
    assert traces.of("acme", "t") is None


def test_an_operator_finds_the_trace_of_any_tenant() -> None:
    traces = Traces()
    first, other, last = (
        traces.begin(name, tenant, trace_id)
        for name, tenant, trace_id in (("a", "acme", "t"), ("b", "bolt", "u"), ("c", "cora", "t"))
    )
    assert traces.of(None, "t") is last
    assert traces.of(None, "u") is other
    assert traces.of(None, "v") is None
    assert traces.of("acme", "t") is first
    assert traces.of("acme", "u") is None
