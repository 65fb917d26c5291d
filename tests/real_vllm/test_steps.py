"""How drafts reach the scheduler, and how steps without drafts are sampled. No server runs."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the modules that vLLM imports
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.outputs import AsyncModelRunnerOutput, DraftTokenIds

    from agentspec.vllm_plugin import scheduler, worker, worker_calls
    from agentspec.vllm_plugin.draft_slots import DRAFTS
    from agentspec.vllm_plugin.undrafted_steps import UndraftedSteps


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a StepScheduler over a scheduler of vLLM that only notes what it is given."""
    noted: list[Any] = []
    monkeypatch.setattr(Scheduler, "update_from_output", lambda self, step, output: "outputs")
    monkeypatch.setattr(Scheduler, "update_draft_token_ids", lambda self, drafts: noted.append(drafts))
    made = object.__new__(scheduler.StepScheduler)
    made.noted = noted
    return made


@pytest.mark.parametrize(
    ("attached", "taken", "is_asked"),
    [({DRAFTS: "drafts"}, ["drafts"], False), ({DRAFTS: None}, [], False), ({}, [], True)],
)
def test_the_worker_is_asked_for_drafts_that_did_not_come(
    steps: Any, monkeypatch: pytest.MonkeyPatch, attached: dict[str, Any], taken: list[str], is_asked: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(scheduler, "_ask_for_drafts", lambda core, executed: asked.append(executed))
    assert steps.update_from_output(None, SimpleNamespace(**attached)) == "outputs"
    scheduler._post_step(SimpleNamespace(scheduler=steps), True)
    assert steps.noted == taken
    assert asked == [True] * is_asked
    scheduler._post_step(SimpleNamespace(scheduler=object()), False)  # another engine's scheduler
    assert asked[-1] is False


def test_drafts_are_attached_to_outputs_of_requests() -> None:
    output = SimpleNamespace(req_ids=["a", "b"])
    drafts = DraftTokenIds(["a", "b"], [[], [1]])
    worker.take_along(output, lambda: drafts)
    assert getattr(output, DRAFTS) is drafts
    empty = SimpleNamespace(req_ids=[])  # vLLM's one empty output is shared
    worker.take_along(empty, lambda: drafts)
    assert not hasattr(empty, DRAFTS)


@pytest.mark.parametrize("drafts", [None, DraftTokenIds(["a", "b"], [[], []])])
def test_where_nothing_is_drafted_nothing_is_sent(drafts: DraftTokenIds | None) -> None:
    output = SimpleNamespace(req_ids=["a", "b"])
    worker.take_along(output, lambda: drafts)
    assert getattr(output, DRAFTS) is None


def test_drafts_that_come_late_are_attached_when_the_output_is_waited_for() -> None:
    class Late(AsyncModelRunnerOutput):
        drafts: Any = None

        def get_output(self) -> Any:
            raise AssertionError("nobody waits for it here")

    late = Late()
    worker.take_along(late, lambda: "drafts")
    assert late.drafts() == "drafts"
    assert not hasattr(late, DRAFTS)


class Runner:
    """A model runner that notes whether it prepared a step as with speculation."""

    def __init__(self, has_budgets: bool | None = None, **kinds: bool) -> None:
        holder = None if has_budgets is None else SimpleNamespace(has_tracked_requests=lambda: has_budgets)
        self.input_batch = SimpleNamespace(thinking_budget_state_holder=holder)
        self.model_config = SimpleNamespace(**{"is_hybrid": False, "is_attention_free": False, **kinds})
        self.speculative_config: Any = "given"
        UndraftedSteps(self)

    def _prepare_inputs(self, step: Any, num_tokens: int) -> tuple[Any, int]:
        if num_tokens < 0:
            raise ValueError("fails")
        return self.speculative_config, num_tokens


def step(**drafts: list[int]) -> Any:
    return SimpleNamespace(scheduled_spec_decode_tokens=drafts)


@pytest.mark.parametrize("has_budgets", [None, False])
def test_a_step_without_drafts_is_as_without_speculation(has_budgets: bool | None) -> None:
    runner = Runner(has_budgets)
    assert runner._prepare_inputs(step(), 7) == (None, 7)
    assert runner.speculative_config == "given"
    assert runner._prepare_inputs(step(a=[5]), 7) == ("given", 7)


def test_a_step_that_fails_leaves_the_configuration() -> None:
    runner = Runner()
    with pytest.raises(ValueError, match="fails"):
        runner._prepare_inputs(step(), -1)
    assert runner.speculative_config == "given"


@pytest.mark.parametrize(
    "runner", [Runner(has_budgets=True), Runner(is_hybrid=True), Runner(is_attention_free=True)]
)
def test_budgets_and_recurrent_layers_need_the_path_of_drafts(runner: Runner) -> None:
    assert runner._prepare_inputs(step(), 7) == ("given", 7)


@pytest.mark.parametrize(
    ("is_warm", "is_async", "num_stages", "has_grammar", "at_once"),
    [
        (True, False, 1, False, True),
        (False, False, 1, False, False),  # vLLM's warm-up makes both calls
        (True, True, 1, False, False),
        (True, False, 2, False, False),
        (True, False, 1, True, False),
    ],
)
def test_a_step_is_one_call_where_nothing_happens_between_two(
    is_warm: bool, is_async: bool, num_stages: int, has_grammar: bool, at_once: bool
) -> None:
    made = object.__new__(worker.AgentSpecWorker)
    made._is_warm = is_warm
    made.vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=is_async),
        parallel_config=SimpleNamespace(pipeline_parallel_size=num_stages),
    )
    assert made._samples_at_once(SimpleNamespace(has_structured_output_requests=has_grammar)) is at_once


class Executor:
    """Answers each call of ``sample_tokens`` with a name; notes the masks that it got."""

    def __init__(self) -> None:
        self.masks: list[Any] = []

    def sample_tokens(self, masks: Any, non_block: bool = False) -> Any:
        self.masks.append(masks)
        answer: Future[str] = Future()
        answer.set_result(f"samples {len(self.masks)}")
        return answer if non_block else answer.result()


def test_samples_that_were_asked_for_are_not_asked_for_again() -> None:
    executor = Executor()
    early = worker_calls.EarlySampling(executor)
    early.ask("masks")
    assert executor.sample_tokens("masks") == "samples 1"
    assert executor.sample_tokens("others") == "samples 2"
    early.ask(None)
    assert executor.sample_tokens(None, non_block=True).result() == "samples 3"
    assert executor.masks == ["masks", "others", None]


@pytest.mark.parametrize("has_grammar", [True, False])
def test_a_step_with_a_grammar_is_sampled_early(
    steps: Any, monkeypatch: pytest.MonkeyPatch, has_grammar: bool
) -> None:
    monkeypatch.setattr(Scheduler, "get_grammar_bitmask", lambda self, step: "masks" if has_grammar else None)
    step = SimpleNamespace(has_structured_output_requests=has_grammar)
    expected = "masks" if has_grammar else None
    assert steps.get_grammar_bitmask(step) == expected  # the worker is in this process
    executor = Executor()
    steps.early = worker_calls.EarlySampling(executor)
    assert steps.get_grammar_bitmask(step) == expected
    assert executor.masks == [expected] * has_grammar


def test_the_scheduler_gets_to_know_an_executor_of_other_processes(
    steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OtherProcesses(Executor):
        pass

    monkeypatch.setattr(scheduler, "MultiprocExecutor", OtherProcesses)
    monkeypatch.setattr(scheduler, "_run_step", lambda core: core)
    for executor, is_early in ((Executor(), False), (OtherProcesses(), True)):
        core = SimpleNamespace(scheduler=steps, model_executor=executor)
        assert scheduler._step(core) is core
        assert (steps.early is not None) is is_early
    early = steps.early
    scheduler._step(core)
    assert steps.early is early
    scheduler._step(SimpleNamespace(scheduler=object(), model_executor=executor))  # not our scheduler


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the engine core does between two looks for a worker's answer: "yield", or seconds of sleep."""
    waits: list[object] = []
    monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: waits.append("yield"))
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


def test_the_engine_core_sleeps_for_most_of_the_least_wait(waits: list[object]) -> None:
    now_s = 0.0
    pauses = worker_calls.Pauses(lambda: now_s)
    for took_s in (0.004, 0.003, 0.005):
        pauses.begin_step(1, 1)
        shm_broadcast.sched_yield()
        shm_broadcast.sched_yield()
        now_s += took_s
        pauses.end_step()
    slept = [worker_calls.SLEPT * least_s - worker_calls.LATE_S for least_s in (0.004, 0.003)]
    assert waits == ["yield", "yield", pytest.approx(slept[0]), "yield", pytest.approx(slept[1]), "yield"]


def test_steps_of_another_size_and_short_ones_are_not_slept_through(waits: list[object]) -> None:
    now_s = 0.0
    pauses = worker_calls.Pauses(lambda: now_s)
    for num_tokens, took_s in ((1, 0.01), (16, 0.0002), (16, 0.0002)):
        pauses.begin_step(1, num_tokens)
        shm_broadcast.sched_yield()
        now_s += took_s
        pauses.end_step()
    pauses.end_step()  # the output was there already
    assert waits == ["yield", "yield", "yield"]


def test_the_engine_core_pauses_between_two_looks_with_many_requests(waits: list[object]) -> None:
    pauses = worker_calls.Pauses(lambda: 0.0)
    pauses.begin_step(worker_calls.MANY, 9)
    for _ in range(3):
        shm_broadcast.sched_yield()
    assert waits == ["yield", worker_calls.PAUSE_S, worker_calls.PAUSE_S]
