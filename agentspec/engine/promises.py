"""What the drafts of a step promise, and whether that is worth their time."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.draft import Draft
from agentspec.steps import StepCost

_RATE = 1 / 256  # of learning
_TRIAL = 0.004  # accepted tokens per step without drafts, for drafts that do not seem to be worth their time
_MOST_TRIALS = 4.0  # accepted tokens


class Promises:
    """A draft promises its score in accepted tokens. Drafts of a step are made together or not at all.

    Each token of a draft is worth the price. A step's first one may cost more: then the drafts of all
    requests have to be worth this stair as well (docs/drafting.md).
    """

    def __init__(self) -> None:
        self._promised = self._accepted = 1.0  # tokens per step; at first promises are believed
        self._trials = 0.0

    @property
    def truth(self) -> float:
        """Accepted tokens per promised token, of late."""
        return self._accepted / self._promised

    def judge(self, promised: float, accepted: int) -> None:
        """Take what the drafts of a step promised together, and the number of accepted tokens."""
        self._promised += _RATE * (promised - self._promised)
        self._accepted += _RATE * (accepted - self._accepted)

    def are_worth(self, drafts: Sequence[Draft], cost: StepCost) -> bool:
        """Return True if the drafts of a step are to be verified.

        Now and then they are although they do not seem to be worth their time, which may have changed.
        """
        num_drafted = sum(map(len, drafts))
        promised = self.truth * sum(draft.score for draft in drafts)
        loss = cost.stair + cost.price * num_drafted - promised
        if loss <= 0 or not num_drafted:
            return True
        self._trials = min(_MOST_TRIALS, self._trials + _TRIAL)
        if loss > self._trials:
            return False
        self._trials -= loss
        return True
