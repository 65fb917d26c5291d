"""The scheduler of a vLLM server: ``--scheduler-cls agentspec.vllm_plugin.scheduler.ForestScheduler``."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from agentspec.vllm_plugin.grammar import GrammarDrafts
from agentspec.vllm_plugin.signals import Signal


class ForestScheduler:
    """Makes the scheduler for the server's kind of scheduling."""

    def __new__(cls, vllm_config: Any, *args: Any, **options: Any) -> Any:
        """Return a scheduler that works ahead of the drafts, or one that works step by step."""
        if vllm_config.scheduler_config.async_scheduling:
            from agentspec.vllm_plugin.v2.scheduler import RaggedScheduler

            return RaggedScheduler(vllm_config, *args, **options)
        return StepScheduler(vllm_config, *args, **options)


class StepScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, which waits for each step's drafts. Sends the worker what grammars dictate."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._grammars = GrammarDrafts.of(self.vllm_config)

    def schedule(self, *args: Any, **options: Any) -> SchedulerOutput:
        """Schedule a step."""
        scheduled: SchedulerOutput = super().schedule(*args, **options)
        self._grammars.forget(scheduled.finished_req_ids)
        return scheduled

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Return the masks of the grammars of a step, and what they dictate behind its drafts."""
        masks: GrammarOutput | None = super().get_grammar_bitmask(scheduler_output)
        if masks is not None:
            names = masks.structured_output_request_ids
            scheduled = scheduler_output.scheduled_spec_decode_tokens
            Signal(dictated=self._grammars.dictated(names, self.requests, scheduled)).attach(masks)
        return masks
