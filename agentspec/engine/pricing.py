"""Decides how many draft tokens a step verifies: what they cost in time, and what they gain.

Costs and gains are counted in accepted tokens: a time costs the tokens that the engine gives in it.
``Pricing`` alone learns both, from the times of the steps and from the accepted tokens (docs/drafting.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentspec.draft import Draft
from agentspec.stages import StageKey
from agentspec.stats import StageTable
from agentspec.steps import PlainStep, StepCost, StepSaving

_LEAST_RATE = 1 / 256  # of learning, per step of a request, and per step with drafts
_FIRST = 0.25  # accepted tokens per step that a new stage is believed to gain
_FIRST_WORTH = 32  # results that count as much as this belief
_PERIOD = 17  # steps of the engine; prime, since text repeats in steps of 2, 4 or 8 tokens
_SMALL = 0.5  # accepted tokens per step: a gain that an unknown cost may outweigh
_EARLY_CONTROLS = (4, 8, 16, 32, 64)  # steps of the engine
_CONTROL_PERIOD = 128
_MAX_LOOK_UP = 1.0  # accepted tokens; a look-up that takes longer was held up
_MAX_TRUTH = 2.0  # and its inverse is the least
_MIN_PROMISE = 1e-9  # tokens per step: drafts may promise nothing for ever
_TRIAL = 0.004  # accepted tokens per step without drafts, for drafts that do not seem to be worth their time
_MARGIN = 1.15  # promised tokens per token of cost: of uncertain promises, those that are too high are chosen
_MAX_TRIALS = 4.0  # accepted tokens, or as many as one step's drafts cost


@dataclass(frozen=True, slots=True)
class Work:
    """What one forward pass did.

    Attributes:
        num_requests: requests that decoded.
        num_drafted: draft tokens that were verified.
        num_tokens: output tokens that the decoding requests gained.
        num_prompt_tokens: tokens of prompts that were read.
    """

    num_requests: int
    num_drafted: int
    num_tokens: int
    num_prompt_tokens: int


@dataclass(slots=True, eq=False)
class StageGain:
    """The gain of a stage's drafts. Negative: a lull.

    Attributes:
        tokens: accepted tokens per step of a request, less the tokens that the time of drafting and
            verification would have given without drafts. An estimate for drafts in every step.
        num_judged: results in it.
    """

    tokens: float = _FIRST
    num_judged: int = 0


@dataclass(slots=True, eq=False)
class Pace:
    """Decides for one request in which steps to ask for a draft.

    To look for a draft takes time even if none is verified: some 8 % of a small model's step. Where text
    repeats little, this is more than the drafts save. Then one step of the engine in 17 asks for all such
    requests together. The next one asks for those with an accepted draft token, since such tokens occur in
    runs.

    While the gain is small, some steps are without drafts as well, as a control. If all steps had drafts, the
    cost of a step's first draft token could not be told from that of the step.

    Attributes:
        gain: of the request's stage, shared by the stage's requests.
        num_skipped: steps since the last result.
        has_gained: True at the beginning, and if the last draft was accepted at least in part.
    """

    gain: StageGain
    num_skipped: int = 0
    has_gained: bool = True

    def asks(self, step: int) -> bool:
        """Return True if a step of the engine, by its number, is to ask for a draft. Once per step."""
        if 0 <= self.gain.tokens < _SMALL and (step % _CONTROL_PERIOD == 0 or step in _EARLY_CONTROLS):
            return False
        if self.gain.tokens >= 0 or self.has_gained or step % _PERIOD == 0:
            return True
        self.num_skipped += 1
        return False

    def judge(self, num_accepted: int, cost: float, num_asked: int = 1) -> None:
        """Take the result of a draft that was asked for, and its cost in accepted tokens.

        It stands for the steps that were skipped before it as well, together with the other results of its
        step: a few lucky ones among many requests do not end a lull.

        Args:
            num_asked: requests that asked in this step.
        """
        rate = max(_LEAST_RATE, 1 / (1 + _FIRST_WORTH + self.gain.num_judged))
        weight = min(1.0, rate * max(1.0, min(1 + self.num_skipped, _PERIOD) / num_asked))
        self.gain.num_judged += 1
        self.gain.tokens += weight * (num_accepted - cost - self.gain.tokens)
        self.num_skipped = 0
        self.note(num_accepted)

    def note(self, num_accepted: int) -> None:
        """Take the result of a draft whose cost is not known."""
        self.has_gained = num_accepted > 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The result of a request that was asked for a draft: None as pace = it asks in every step."""

    pace: Pace | None
    num_drafted: int
    num_accepted: int


class Pricing:
    """Learns what draft tokens cost and gain, and decides which are verified.

    A draft token costs the price. A step's first one may cost more: another kernel multiplies two rows. Then
    the drafts of all requests have to save this first cost as well, with a margin. A draft promises its
    score in accepted tokens, corrected by how true such promises were of late. A rejected draft promises
    little, and later drafts of the request mostly do too. So an accepted token saves the time of a token
    without drafts here, not that of an average one. Drafts without estimates promise nothing, and are always
    verified.

    Args:
        price: of a draft token, in accepted tokens (0 to 1), for all steps; None = learned from their times.
        has_lulls: stages whose drafts gain less than they cost ask in few steps; only with a learned price.
    """

    def __init__(self, price: float | None = None, *, has_lulls: bool = True) -> None:
        self._fixed_price = price
        self._cost = StepCost(has_stair=True)
        self._plain = PlainStep()
        self._gains = StageTable(StageGain) if has_lulls and price is None else None
        self._promised = self._accepted = 1.0  # tokens per step; at first promises are believed
        self._trials = 0.0

    @property
    def price(self) -> float:
        """The cost of one more draft token, in accepted tokens, at present."""
        return self._cost.price if self._fixed_price is None else self._fixed_price

    @property
    def min_prob(self) -> float:
        """The least estimate of a draft token that is worth the price."""
        return self.price if self._fixed_price is not None else min(1.0, self.price / self.truth)

    @property
    def truth(self) -> float:
        """Accepted tokens per promised token, of late: 0.5 to 2."""
        truth = self._accepted / max(self._promised, _MIN_PROMISE)
        return min(_MAX_TRUTH, max(1 / _MAX_TRUTH, truth))

    def pace(self, stage: StageKey) -> Pace | None:
        """Return a new request's pace; None = it asks in every step."""
        return None if self._gains is None else Pace(self._gains.of(stage))

    def are_worth(self, drafts: Sequence[Draft], num_requests: int) -> bool:
        """Return True if the drafts of a step without prompts are to be verified: all or none.

        Now and then they are although they do not seem to be worth their time, which may have changed.

        Args:
            num_requests: requests in the step.
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
        """Take the drafts of a step, and the number of accepted tokens of each."""
        promises = [(draft.score, accepted) for draft, accepted in results if _promises(draft)]
        if promises:
            self._promised += _LEAST_RATE * (sum(score for score, _ in promises) - self._promised)
            self._accepted += _LEAST_RATE * (sum(accepted for _, accepted in promises) - self._accepted)

    def judge(self, asked: Sequence[Asked], drafting_s: float, work: Work) -> None:
        """Compare the accepted tokens of each draft that was asked for with its part of the step's time.

        Args:
            drafting_s: time of the look-ups of these drafts.
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
        """Return the time of a step with drafts and without; None if the latter is not known.

        Args:
            seconds: since the last step's verdicts.
            drafting_s: the part of the decoding requests in the drafting.
            num_drafted: their draft tokens: a draft that ends a prompt is a part of reading it.
        """
        times = seconds, drafting_s, work.num_requests, num_drafted, work.num_prompt_tokens
        return self._plain.observe(*times, self._cost.drafts_s(num_drafted))

    def timed(self, seconds: float, work: Work) -> None:
        """Learn from the time of a step, without that of drafting."""
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
