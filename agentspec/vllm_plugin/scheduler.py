"""The scheduler of a vLLM server: ``--scheduler-cls agentspec.vllm_plugin.scheduler.ForestScheduler``.

Step by step, vLLM calls the worker for the forward pass, then for the samples, then for the drafts, and waits
each time. Waiting is a large part of a small model's step. Here the drafts come with the samples. The
samples come with the forward pass. A step with a grammar needs its masks first, so its samples are asked for
while the model runs. What a grammar dictates continues the draft of its request.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.outputs import ModelRunnerOutput

from agentspec.vllm_plugin.draft_slots import DRAFTS
from agentspec.vllm_plugin.grammar_drafts import GrammarDrafts
from agentspec.vllm_plugin.worker_calls import EarlySampling, Pauses

_ABSENT = object()


class ForestScheduler:
    """Makes the scheduler for the server's kind of scheduling."""

    def __new__(cls, vllm_config: Any, *args: Any, **options: Any) -> Any:
        """Return a scheduler that works ahead of the drafts, or one that works step by step."""
        if vllm_config.scheduler_config.async_scheduling:
            from agentspec.vllm_plugin.ragged_scheduler import RaggedScheduler

            return RaggedScheduler(vllm_config, *args, **options)
        return StepScheduler(vllm_config, *args, **options)


class StepScheduler(Scheduler):  # type: ignore[misc]
    """Takes the drafts with the output of a step. No call of the worker asks for them.

    Attributes:
        has_drafts: the last output had the drafts for the next step.
        early: asks for the samples of steps with grammars; None with the worker in this process, or before
            the first step. Steps without grammars are sampled by the call for the forward pass.
    """

    has_drafts = False
    early: EarlySampling | None = None
    _pauses: Pauses | None = None
    _grammars: GrammarDrafts | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._grammars = GrammarDrafts.of(self.vllm_config)
        EngineCore.step, EngineCore.post_step = _step, _post_step
        if current_platform.is_cpu():
            self._pauses = Pauses()

    def schedule(self, *args: Any, **options: Any) -> SchedulerOutput:
        """Schedule a step."""
        if self._grammars is not None and self._grammars.names_drafts:
            self._grammars.extend(self.running)
        scheduled: SchedulerOutput = super().schedule(*args, **options)
        if self._grammars is not None:
            self._grammars.forget(scheduled.finished_req_ids)
        if self._pauses is not None:
            self._pauses.begin_step(len(scheduled.num_scheduled_tokens), scheduled.total_num_scheduled_tokens)
        return scheduled

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Return the masks of the grammars of a step that the workers run, and ask for its samples."""
        masks: GrammarOutput | None = super().get_grammar_bitmask(scheduler_output)
        if masks is not None and self._grammars is not None and not self._grammars.names_drafts:
            self._grammars.attach(masks, self.requests, scheduler_output.scheduled_spec_decode_tokens)
        if self.early is not None and scheduler_output.has_structured_output_requests:
            self.early.ask(masks)
        return masks

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Take a step's output, then its drafts."""
        if self._pauses is not None:
            self._pauses.end_step()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        drafts = getattr(model_runner_output, DRAFTS, _ABSENT)
        self.has_drafts = drafts is not _ABSENT
        if self.has_drafts and drafts is not None:
            self.update_draft_token_ids(drafts)
        return outputs


_run_step, _ask_for_drafts = EngineCore.step, EngineCore.post_step


def _step(core: EngineCore) -> Any:
    """Run a step, after the scheduler got to know its executor."""
    scheduler: object = core.scheduler
    is_other_process = isinstance(core.model_executor, MultiprocExecutor)
    if is_other_process and isinstance(scheduler, StepScheduler) and scheduler.early is None:
        scheduler.early = EarlySampling(core.model_executor)
    return _run_step(core)


def _post_step(core: EngineCore, model_executed: bool) -> None:
    """Ask the worker for the drafts, unless they came with the output."""
    scheduler: object = core.scheduler
    if not (isinstance(scheduler, StepScheduler) and scheduler.has_drafts):
        _ask_for_drafts(core, model_executed)
