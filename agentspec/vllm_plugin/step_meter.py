"""The time of decode steps: the price of a draft token, and the time saved, are learned from it."""

from __future__ import annotations

from agentspec.plain_step import PlainStep, StepSaving
from agentspec.step_cost import StepCost


class StepMeter:
    """Measures the steps of one engine. Has no clock: times are seconds on any clock that never goes back.

    Args:
        price: the operator's price; None = learn it from the steps.

    Attributes:
        num_slots: slots that all steps verified, padding included.
    """

    def __init__(self, price: float | None) -> None:
        self._cost = StepCost()
        self._plain = PlainStep()
        self._price = price
        self.num_slots = 0
        self._end_s = 0.0  # of the last drafting; 0: no step yet
        self._drafting_s = 0.0  # duration of the last drafting, which drafted for the next step

    @property
    def price(self) -> float:
        """The present least chance of acceptance for a draft token."""
        return self._cost.price if self._price is None else self._price

    def idle(self, now_s: float) -> None:
        """Begin a step with no other before it: the time until now belongs to no request."""
        self._end_s, self._drafting_s = now_s, 0.0

    def observe(
        self,
        begin_s: float,
        end_s: float,
        num_scheduled: int,
        num_decoding: int,
        num_slots: int,
        num_new: int,
    ) -> StepSaving | None:
        """Take a step. Return the time that its drafts saved; None if the time without drafts is unknown.

        Args:
            begin_s, end_s: when drafting for the next step began and ended; the forward pass is before it.
            num_scheduled: tokens that the step processed.
            num_decoding: rows that were decoding before it.
            num_slots: slots that it verified for them, padding included.
            num_new: their new tokens.
        """
        self.num_slots += num_slots
        seconds, drafting_s = begin_s - self._end_s, self._drafting_s
        self._end_s, self._drafting_s = end_s, end_s - begin_s
        num_prompt_tokens = max(0, num_scheduled - num_decoding - num_slots)
        saving = self._plain.observe(
            seconds + drafting_s,
            drafting_s,
            num_decoding,
            num_slots,
            num_prompt_tokens,
            self._cost.draft_token_s,
        )
        self._cost.observe(seconds, num_decoding, num_slots, num_new, num_prompt_tokens)
        return saving
