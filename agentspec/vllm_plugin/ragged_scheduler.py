"""vLLM's asynchronous scheduler, with as many slots for a request as its drafts fill.

vLLM schedules a step before it knows its drafts, and gives every request all slots. A slot without a draft
token costs as much as one with.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from agentspec.vllm_plugin.draft_lengths import NUM_DRAFTED, DraftLengths


class RaggedScheduler(AsyncScheduler):  # type: ignore[misc]
    """Gives each request as many slots as its last known draft needs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lengths = DraftLengths(self.num_spec_tokens)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        self._lengths.forget(scheduler_output.finished_req_ids)
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            if request.spec_token_ids:
                num_slots = min(len(request.spec_token_ids), self._lengths.num_slots(name))
                request.spec_token_ids = request.spec_token_ids[:num_slots]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Take a step's output. Padding is not counted as drafted."""
        padded = scheduler_output.num_invalid_spec_tokens or {}
        for name, slots in scheduler_output.scheduled_spec_decode_tokens.items():
            if name not in padded:
                padded[name] = self._lengths.num_padded(name, len(slots))
        scheduler_output.num_invalid_spec_tokens = padded
        self._lengths.learn(getattr(model_runner_output, NUM_DRAFTED, None) or {})
        return super().update_from_output(scheduler_output, model_runner_output)
