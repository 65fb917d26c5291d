"""vLLM's asynchronous scheduler, with as many slots per request as its drafts are expected to fill.

vLLM schedules a step before the step's drafts are known, and gives every request all slots. A slot without a
draft token costs as much as a slot with one.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from agentspec.tags import Tags
from agentspec.vllm_plugin.grammar import GrammarDrafts, known
from agentspec.vllm_plugin.signals import Signal
from agentspec.vllm_plugin.v2.slots import DraftSlots


class RaggedScheduler(AsyncScheduler):  # type: ignore[misc]
    """Gives each request the slots that are worth their price, judged by its previous drafts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._slots = DraftSlots(self.num_spec_tokens)
        self._grammars = GrammarDrafts.of(self.vllm_config)

    def add_request(self, request: Request) -> None:
        """Add a request to the queue."""
        params = request.sampling_params
        if params is not None:  # it generates tokens
            self._slots.add(request.request_id, Tags.from_xargs(params.extra_args).stage)
        super().add_request(request)

    def schedule(self, *args: Any, **options: Any) -> SchedulerOutput:
        """Schedule a step. The previous step, which may still run, makes its drafts."""
        for request in self.running:
            if request.spec_token_ids:
                num_slots = self._slots.num_slots(request.request_id)
                request.spec_token_ids = request.spec_token_ids[:num_slots]
        self._slots.expect({})  # the dictated lengths were for this step
        scheduled: SchedulerOutput = super().schedule(*args, **options)
        self._slots.forget(scheduled.finished_req_ids)
        self._grammars.forget(scheduled.finished_req_ids)
        return scheduled

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Return the masks of a step's grammars, with the dictated tokens behind its drafts attached."""
        masks: GrammarOutput | None = super().get_grammar_bitmask(scheduler_output)
        if masks is not None:
            scheduled = scheduler_output.scheduled_spec_decode_tokens
            names = masks.structured_output_request_ids
            dictated = self._grammars.dictated(names, self.requests, scheduled)
            Signal(dictated=dictated).attach(masks)
            self._slots.expect(
                {name: len(one) - len(known(scheduled.get(name, ()))) - 1 for name, one in dictated.items()}
            )
        return masks

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Process a step's output. Padding does not count as drafted."""
        padded = scheduler_output.num_invalid_spec_tokens or {}
        for name, slots in scheduler_output.scheduled_spec_decode_tokens.items():
            if name not in padded:
                padded[name] = self._slots.num_padded(name, len(slots))
        scheduler_output.num_invalid_spec_tokens = padded
        drafted = Signal.of(model_runner_output).drafted
        if drafted is not None:
            self._slots.learn(drafted)
        return super().update_from_output(scheduler_output, model_runner_output)
