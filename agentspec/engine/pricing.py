"""Decides how many draft tokens a step verifies, by their expected gain and their cost.

The unit of gains and costs is one accepted token. A duration costs as many accepted tokens as the engine
produces in it. Only ``Pricing`` learns costs and gains, from the times of steps and the accepted tokens
(docs/drafting.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentspec.draft import Draft
from agentspec.stages import StageKey
from agentspec.stats import StageTable
from agentspec.steps import PlainStep, StepCost, StepSaving

_LEAST_RATE = 1 / 256  # least learning rate, per step of a request, and per step with drafts
_FIRST = 0.25  # prior of a new stage's gain, in accepted tokens per step
_FIRST_WORTH = 32  # number of observations that the prior counts as
_PERIOD = 17  # steps of the engine; prime, since text repeats in steps of 2, 4 or 8 tokens
_SMALL = 0.5  # accepted tokens per step: a gain that an unknown cost may outweigh
_EARLY_CONTROLS = (4, 8, 16, 32, 64)  # steps of the engine that run without drafts
_CONTROL_PERIOD = 128
_MAX_LOOK_UP = 1.0  # in accepted tokens: upper bound of a look-up's cost, since a longer one was interrupted
_MAX_TRUTH = 2.0  # upper bound of ``truth``; its inverse is the lower bound
_MIN_PROMISE = 1e-9  # in tokens per step: keeps the divisor above 0
_TRIAL = 0.004  # credit per step without drafts, in accepted tokens, to try drafts that are not worth it
_MARGIN = 1.15  # least ratio of expected gain to cost; selection favours overestimated gains
_MAX_TRIALS = 4.0  # limit of the credit, in accepted tokens, or the cost of one step's drafts if that is more


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one forward pass.

    Attributes:
        num_requests: number of requests that decoded.
        num_drafted: number of verified draft tokens.
        num_tokens: number of output tokens of the decoding requests.
        num_prompt_tokens: number of prompt tokens.
    """

    num_requests: int
    num_drafted: int
    num_tokens: int
    num_prompt_tokens: int


@dataclass(slots=True, eq=False)
class StageGain:
    """The gain of a stage's drafts. A stage with a negative gain is in a lull: few steps draft for it.

    Attributes:
        tokens: accepted tokens per step of a request, minus the tokens that the engine would produce without
            drafts in the time of drafting and verification. Estimated for drafts in every step.
        num_judged: number of observations.
    """

    tokens: float = _FIRST
    num_judged: int = 0


@dataclass(slots=True, eq=False)
class Pace:
    """Decides for one request in which steps to ask the proposer for a draft.

    Looking for a draft takes time even if no draft is verified: some 8 % of a small model's step. Where text
    repeats little, this costs more than drafts save. In such a lull, one step of the engine in 17 asks for
    the drafts of all requests of the stage. The step after it asks for requests with an accepted draft token,
    since accepted tokens occur in runs.

    While the gain is small, some steps run without drafts, as a control. If all steps had drafts, their cost
    could not be separated from the cost of a step.

    Attributes:
        gain: gain of the stage, shared by the stage's requests.
        num_skipped: number of steps since the last observation.
        has_gained: True at first, and if the last draft had an accepted token.
    """

    gain: StageGain
    num_skipped: int = 0
    has_gained: bool = True

    def asks(self, step: int) -> bool:
        """Return True if the engine's step with this number asks for a draft. Call it once per step."""
        if 0 <= self.gain.tokens < _SMALL and (step % _CONTROL_PERIOD == 0 or step in _EARLY_CONTROLS):
            return False
        if self.gain.tokens >= 0 or self.has_gained or step % _PERIOD == 0:
            return True
        self.num_skipped += 1
        return False

    def judge(self, num_accepted: int, cost: float, num_asked: int = 1) -> None:
        """Add the result of a draft to the stage's gain. ``cost`` is in accepted tokens.

        The result also counts for the steps that were skipped before, shared with the other requests of its
        step: a few accepted drafts among many requests do not end a lull.

        Args:
            num_asked: number of requests that asked in this step.
            num_asked: requests that asked in this step.
        """
        rate = max(_LEAST_RATE, 1 / (1 + _FIRST_WORTH + self.gain.num_judged))
        weight = min(1.0, rate * max(1.0, min(1 + self.num_skipped, _PERIOD) / num_asked))
        self.gain.num_judged += 1
        self.gain.tokens += weight * (num_accepted - cost - self.gain.tokens)
        self.num_skipped = 0
        self.note(num_accepted)

    def note(self, num_accepted: int) -> None:
        """Note whether the last draft had an accepted token, without updating the gain."""
        self.has_gained = num_accepted > 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The result of one draft of a step. ``pace`` is None for a request that asks in every step."""

    pace: Pace | None
    num_drafted: int
    num_accepted: int


class Pricing:
    """Learns the cost and the gain of draft tokens, and decides which drafts are verified.

    A draft token costs the price. The first draft token of a step may cost more, because a matrix product
    with two rows uses another kernel. The drafts of all requests together must then save this extra cost too,
    with a margin. The expected gain of a draft is its score, in accepted tokens, times the recent ratio of
    accepted tokens to scores. A rejected draft lowers the score of the request's next drafts, so an accepted
    token saves the time of a token without drafts, not the time of an average token. Drafts without scores
    are always verified.

    Args:
        price: constant cost of a draft token, in accepted tokens (0 to 1); None = learned from step times.
        has_lulls: ask seldom for drafts of stages that gain less than their drafts cost. Has no effect with
            a constant price.
    """

    def __init__(self, price: float | None = None, *, has_lulls: bool = True) -> None:
        self._fixed_price = price
        self._cost = StepCost(has_stair=True)
        self._plain = PlainStep()
        self._gains = StageTable(StageGain) if has_lulls and price is None else None
        self._promised = self._accepted = 1.0  # tokens per step; equal at first, so scores count as exact
        self._trials = 0.0

    @property
    def price(self) -> float:
        """The present cost of one more draft token, in accepted tokens."""
        return self._cost.price if self._fixed_price is None else self._fixed_price

    @property
    def min_prob(self) -> float:
        """The least score of a draft token that is worth the price."""
        return self.price if self._fixed_price is not None else min(1.0, self.price / self.truth)

    @property
    def truth(self) -> float:
        """Recent ratio of accepted tokens to scores: 0.5 to 2."""
        truth = self._accepted / max(self._promised, _MIN_PROMISE)
        return min(_MAX_TRUTH, max(1 / _MAX_TRUTH, truth))

    def pace(self, stage: StageKey) -> Pace | None:
        """Return the pace of a new request; None = the request asks in every step."""
        return None if self._gains is None else Pace(self._gains.of(stage))

    def are_worth(self, drafts: Sequence[Draft], num_requests: int) -> bool:
        """Return True if the drafts of a step without prompts are to be verified: all of them or none.

        From time to time the drafts are verified although they seem not worth their cost, since that may have
        changed.

        Args:
            num_requests: number of requests in the step.
        """
        made = [draft for draft in drafts if len(draft)]
        if self._fixed_price is not None or not made or not all(map(_promises, made)):
            return True
        price = self._cost.stair + self._cost.price * sum(map(len, made))
        plain_s = self._plain_token_s(num_requests)
        if plain_s is not None and self._cost.token_s > 0:
            price *= self._cost.token_s / plain_s
        loss = _MARGIN * price - self.truth * sum(draft.score for draft in made)
        if loss <= 0:
            return True
        self._trials = min(max(_MAX_TRIALS, loss), self._trials + _TRIAL)
        if loss > self._trials:
            return False
        self._trials -= loss
        return True

    def verified(self, results: Iterable[tuple[Draft, int]]) -> None:
        """Learn from the verified drafts of a step, each with its number of accepted tokens."""
        promises = [(draft.score, accepted) for draft, accepted in results if _promises(draft)]
        if promises:
            self._promised += _LEAST_RATE * (sum(score for score, _ in promises) - self._promised)
            self._accepted += _LEAST_RATE * (sum(accepted for _, accepted in promises) - self._accepted)

    def judge(self, asked: Sequence[Asked], drafting_s: float, work: Work) -> None:
        """Update the gain of each draft's stage with accepted tokens and cost of the draft.

        Args:
            drafting_s: seconds of the look-ups of these drafts.
        """
        token_s = None if work.num_prompt_tokens else self._plain_token_s(work.num_requests)
        drafts_s = self._cost.drafts_s(work.num_drafted) if work.num_drafted else 0.0
        for one in asked:
            if one.pace is None:
                continue
            if token_s is None or drafts_s is None:
                one.pace.note(one.num_accepted)
                continue
            look_up = max(0.0, min(_MAX_LOOK_UP, drafting_s / len(asked) / token_s))
            per_token = drafts_s / max(1, work.num_drafted) / token_s
            one.pace.judge(one.num_accepted, look_up + per_token * one.num_drafted, len(asked))

    def saving(self, seconds: float, drafting_s: float, work: Work, num_drafted: int) -> StepSaving | None:
        """Return the time of a step with and without drafts; None if the time without drafts is not known.

        Args:
            seconds: time since the last step's verdicts.
            drafting_s: time of drafting for the decoding requests.
            num_drafted: their draft tokens. A draft behind the end of a prompt counts as part of the prompt.
        """
        times = seconds, drafting_s, work.num_requests, num_drafted, work.num_prompt_tokens
        return self._plain.observe(*times, self._cost.drafts_s(num_drafted))

    def timed(self, seconds: float, work: Work) -> None:
        """Learn from the time of a step without its drafting."""
        self._cost.observe(
            seconds, work.num_requests, work.num_drafted, work.num_tokens, work.num_prompt_tokens
        )

    def plain_step_s(self, num_requests: int) -> float | None:
        """Return the time of a step without drafts; None = not known."""
        return self._plain.seconds(num_requests)

    def drafts_s(self, num_drafted: int) -> float | None:
        """Return the time that verifying draft tokens adds to a step; None = not known."""
        return self._cost.drafts_s(num_drafted)

    def _plain_token_s(self, num_requests: int) -> float | None:
        step_s = self._plain.seconds(num_requests)
        return None if step_s is None else step_s / num_requests


def _promises(draft: Draft) -> bool:
    return len(draft) > 0 and not math.isnan(draft.probs[0])
