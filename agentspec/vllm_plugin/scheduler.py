"""The scheduler of a vLLM server: ``--scheduler-cls agentspec.vllm_plugin.scheduler.ForestScheduler``.

Step by step, vLLM asks the worker for the drafts after each step. A call of the worker is a large part of a
small model's step, so here the drafts come with the step's output.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput

from agentspec.vllm_plugin.draft_lengths import DRAFTS

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
    """

    has_drafts = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        EngineCore.post_step = _post_step

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Take a step's output, then its drafts."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        drafts = getattr(model_runner_output, DRAFTS, _ABSENT)
        self.has_drafts = drafts is not _ABSENT
        if self.has_drafts and drafts is not None:
            self.update_draft_token_ids(drafts)
        return outputs


_ask_for_drafts = EngineCore.post_step


def _post_step(core: EngineCore, model_executed: bool) -> None:
    """Ask the worker for the drafts, unless they came with the output."""
    scheduler: object = core.scheduler
    if not (isinstance(scheduler, StepScheduler) and scheduler.has_drafts):
        _ask_for_drafts(core, model_executed)
