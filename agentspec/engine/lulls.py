"""Lulls: while a stage's drafts lose more time than they save, few are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from agentspec.stages import StageKey

_RATE = 1 / 256  # of learning, per step of a request
_FIRST = 0.25  # accepted tokens per step that a new stage is believed to gain
_MOST_SKIPPED = 15  # steps in a row
_MOST_STAGES = 4096  # that are remembered; clients name them


@dataclass(slots=True, eq=False)
class StageGain:
    """The gain of a stage's drafts.

    Attributes:
        tokens: accepted tokens per step of a request, less the tokens that the time of drafting and
            verification would have given without drafts. An estimate for drafts in every step.
    """

    tokens: float = _FIRST


@dataclass(slots=True, eq=False)
class Lull:
    """Decides for one request in which steps to ask for a draft.

    To look for a draft takes time even if none is verified: some 8 % of a small model's step. Where text
    repeats little, this is more than the drafts save. Then one step in 16 asks, and the next one if a draft
    token was accepted, since such tokens occur in runs.

    Attributes:
        stage: the gain of the request's stage, shared by its requests. Negative: there is a lull.
        num_skipped: steps since the last one that asked.
        has_gained: True if the last draft was accepted at least in part, or at the beginning.
        is_asking: True between the question for a draft and its result.
    """

    stage: StageGain
    num_skipped: int = 0
    has_gained: bool = True
    is_asking: bool = False

    def asks(self) -> bool:
        """Return True if this step is to ask for a draft. To be called once per step."""
        self.is_asking = self.stage.tokens >= 0 or self.has_gained or self.num_skipped == _MOST_SKIPPED
        self.num_skipped += not self.is_asking
        return self.is_asking

    def judge(self, num_accepted: int, cost: float) -> None:
        """Take the result of the draft that was asked for, and its cost in accepted tokens.

        It stands for the steps that were skipped before it as well.
        """
        weight = _RATE * (1 + self.num_skipped)
        self.stage.tokens += weight * (num_accepted - cost - self.stage.tokens)
        self.num_skipped, self.has_gained, self.is_asking = 0, num_accepted > 0, False


class Lulls:
    """The gains of an engine's stages. Safe to use from several threads."""

    def __init__(self) -> None:
        self._gain = lru_cache(_MOST_STAGES)(lambda _: StageGain())

    def begin(self, stage: StageKey) -> Lull:
        """Return the decisions for a new request of a stage."""
        return Lull(self._gain(stage))
