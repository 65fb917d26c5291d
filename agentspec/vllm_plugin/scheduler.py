"""The scheduler of a vLLM server: ``--scheduler-cls agentspec.vllm_plugin.scheduler.ForestScheduler``."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from agentspec.vllm_plugin.grammar import GrammarDrafts
from agentspec.vllm_plugin.launch import V1_METHOD
from agentspec.vllm_plugin.signals import Signal
from agentspec.vllm_plugin.v1.proposer import SamplerRoom


class ForestScheduler:
    """Makes the scheduler for the server's kind of scheduling."""

    def __new__(cls, vllm_config: Any, *args: Any, **options: Any) -> Any:
        """Return a scheduler that works ahead of the drafts, or one that works step by step."""
        if vllm_config.scheduler_config.async_scheduling:
            from agentspec.vllm_plugin.v2.scheduler import RaggedScheduler

            return RaggedScheduler(vllm_config, *args, **options)
        return StepScheduler(vllm_config, *args, **options)


class StepScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, which waits for each step's drafts, and drafts what grammars dictate.

    With model runner V1 it appends that to the drafts of the next step. The worker of V2 verifies its own
    drafts, so there the scheduler sends it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._grammars = GrammarDrafts.of(self.vllm_config)
        self._room: SamplerRoom | None = None
        if self.vllm_config.speculative_config.method == V1_METHOD:
            self._room = SamplerRoom.of_server(
                self.scheduler_config.max_num_seqs,
                self.scheduler_config.max_num_batched_tokens,
                self.vllm_config.model_config.get_vocab_size(),
            )

    def schedule(self, *args: Any, **options: Any) -> SchedulerOutput:
        """Schedule a step."""
        if self._room is not None:
            self._grammars.extend(self.running, self._room.most)
        scheduled: SchedulerOutput = super().schedule(*args, **options)
        self._grammars.forget(scheduled.finished_req_ids)
        return scheduled

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Return the masks of the grammars of a step; for V2 with what they dictate behind its drafts."""
        masks: GrammarOutput | None = super().get_grammar_bitmask(scheduler_output)
        if masks is not None and self._room is None:
            names = masks.structured_output_request_ids
            scheduled = scheduler_output.scheduled_spec_decode_tokens
            Signal(dictated=self._grammars.dictated(names, self.requests, scheduled)).attach(masks)
        return masks
