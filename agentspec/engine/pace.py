"""In which steps a request asks for a draft: in all, or in few during a lull of its stage."""

from __future__ import annotations

from dataclasses import dataclass

_RATE = 1 / 256  # of learning, per step of a request
_FIRST = 0.25  # accepted tokens per step that a new stage is believed to gain
_PERIOD = 17  # steps of the engine; prime, since text repeats in steps of 2, 4 or 8 tokens


@dataclass(slots=True, eq=False)
class StageGain:
    """The gain of a stage's drafts. Negative: a lull.

    Attributes:
        tokens: accepted tokens per step of a request, less the tokens that the time of drafting and
            verification would have given without drafts. An estimate for drafts in every step.
    """

    tokens: float = _FIRST


@dataclass(slots=True, eq=False)
class Pace:
    """Decides for one request in which steps to ask for a draft.

    To look for a draft takes time even if none is verified: some 8 % of a small model's step. Where text
    repeats little, this is more than the drafts save. Then one step of the engine in 17 asks for all such
    requests together. The next one asks for those with an accepted draft token, since such tokens occur in
    runs.

    Attributes:
        gain: of the request's stage, shared by the stage's requests.
        num_skipped: steps since the last result.
        has_gained: True at the beginning, and if the last draft was accepted at least in part.
    """

    gain: StageGain
    num_skipped: int = 0
    has_gained: bool = True

    def asks(self, step: int) -> bool:
        """Return True if a step of the engine is to ask for a draft. To be called once per step.

        Args:
            step: the step's number.
        """
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
        weight = _RATE * max(1.0, min(1 + self.num_skipped, _PERIOD) / num_asked)
        self.gain.tokens += weight * (num_accepted - cost - self.gain.tokens)
        self.num_skipped, self.has_gained = 0, num_accepted > 0
