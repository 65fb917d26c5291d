"""The promises of a step's drafts, and the choice to verify them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from agentspec.draft import Draft
from agentspec.steps import StepCost

_RATE = 1 / 256  # of learning
_MOST_TRUTH = 2.0  # and its inverse is the least
_LEAST_PROMISE = 1e-9  # tokens per step: drafts may promise nothing for ever
_TRIAL = 0.004  # accepted tokens per step without drafts, for drafts that do not seem to be worth their time
_MARGIN = 1.15  # promised tokens per token of cost: of uncertain promises, those that are too high are chosen
_MOST_TRIALS = 4.0  # accepted tokens, or as many as one step's drafts cost


class Promises:
    """A draft promises its score in accepted tokens. Drafts of a step are made together or not at all.

    Each token of a draft is worth the price. A step's first one may cost more: then the drafts of all
    requests have to save this stair as well, with a margin (docs/drafting.md). What is refused promises
    little, and the next drafts mostly do too. So an accepted token saves the time of a token without drafts
    here, not that of an average one. Drafts without estimates promise nothing, and are always verified.
    """

    def __init__(self) -> None:
        self._promised = self._accepted = 1.0  # tokens per step; at first promises are believed
        self._trials = 0.0

    @property
    def truth(self) -> float:
        """Accepted tokens per promised token, of late: 0.5 to 2."""
        truth = self._accepted / max(self._promised, _LEAST_PROMISE)
        return min(_MOST_TRUTH, max(1 / _MOST_TRUTH, truth))

    def judge(self, verified: Iterable[tuple[Draft, int]]) -> None:
        """Take the drafts of a step, and the number of accepted tokens of each."""
        promises = [(draft.score, accepted) for draft, accepted in verified if _promises(draft)]
        if promises:
            self._promised += _RATE * (sum(score for score, _ in promises) - self._promised)
            self._accepted += _RATE * (sum(accepted for _, accepted in promises) - self._accepted)

    def are_worth(self, drafts: Sequence[Draft], cost: StepCost, plain_token_s: float | None = None) -> bool:
        """Return True if the drafts of a step are to be verified.

        Now and then they are although they do not seem to be worth their time, which may have changed.

        Args:
            plain_token_s: seconds of an output token without drafts; None = unknown, then those of an average
                token.
        """
        made = [draft for draft in drafts if len(draft)]
        if not all(map(_promises, made)):
            return True
        promised = self.truth * sum(draft.score for draft in made)
        price = cost.stair + cost.price * sum(map(len, made))
        if plain_token_s is not None and cost.token_s > 0:
            price *= cost.token_s / plain_token_s
        loss = _MARGIN * price - promised
        if loss <= 0 or not made:
            return True
        self._trials = min(max(_MOST_TRIALS, loss), self._trials + _TRIAL)
        if loss > self._trials:
            return False
        self._trials -= loss
        return True


def _promises(draft: Draft) -> bool:
    return len(draft) > 0 and not math.isnan(draft.probs[0])
