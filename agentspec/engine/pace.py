"""In which steps a request asks for a draft: in all, or in few during a lull of its stage."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_RATE = 1 / 256  # of learning, per step of a request
_FIRST = 0.25  # accepted tokens per step that a new stage is believed to gain
_FIRST_WORTH = 32  # results that count as much as this belief
_PERIOD = 17  # steps of the engine; prime, since text repeats in steps of 2, 4 or 8 tokens
_SMALL = 0.5  # accepted tokens per step: a gain that an unknown cost may outweigh
_EARLY_CONTROLS = (4, 8, 16, 32, 64)  # steps of the engine
_CONTROL_PERIOD = 128


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
        """Return True if a step of the engine is to ask for a draft. To be called once per step.

        Args:
            step: the step's number.
        """
        if 0 <= self.gain.tokens < _SMALL and _is_control(step):
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


def _is_control(step: int) -> bool:
    return step % _CONTROL_PERIOD == 0 or step in _EARLY_CONTROLS
