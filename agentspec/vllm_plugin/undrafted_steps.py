"""Steps without drafts, in vLLM's model runner V1: they cost what they cost without speculation."""

from __future__ import annotations

from typing import Any


class UndraftedSteps:
    """Has a model runner prepare and sample steps without drafts as it does without speculation.

    With speculation vLLM makes index tensors for the drafts of every step, and takes the sampler for drafts.
    That is a tenth of a small model's step. Two kinds of steps stay as they are. The sampler for drafts
    counts the tokens of requests with a thinking budget. Recurrent layers keep states for drafts.

    Args:
        runner: vLLM's ``GPUModelRunner``. Its method ``_prepare_inputs`` is replaced.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._prepare = runner._prepare_inputs
        if not (runner.model_config.is_hybrid or runner.model_config.is_attention_free):
            runner._prepare_inputs = self._prepare_inputs

    def _prepare_inputs(self, scheduler_output: Any, *arguments: Any) -> Any:
        """Prepare the inputs of a step; returns what vLLM's method returns."""
        if scheduler_output.scheduled_spec_decode_tokens or self._has_budgets():
            return self._prepare(scheduler_output, *arguments)
        runner = self._runner
        config, runner.speculative_config = runner.speculative_config, None
        try:
            return self._prepare(scheduler_output, *arguments)
        finally:
            runner.speculative_config = config

    def _has_budgets(self) -> bool:
        holder = getattr(self._runner.input_batch, "thinking_budget_state_holder", None)
        return holder is not None and bool(holder.has_tracked_requests())
