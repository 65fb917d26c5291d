"""Decides per row between the draft of vLLM's draft model, such as an EAGLE head, and the trees' draft.

The worth of a draft is its accepted tokens minus the cost of its verification. Does not import vLLM.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from agentspec.stages import StageKey
from agentspec.vllm_plugin.v2.slots import WORTH

EXPLORE_EVERY = 64  # one of so many rows uses the model's draft, and one of so many steps forgets, to explore
MOST_STAGES = 1024  # clients choose their names; further stages use the figures of all stages
FEWEST = 4  # number of drafts in a bin before its mean counts
_BOUNDS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # bounds of the bins of the trees' worth
_CENTRES = (0.1, 0.375, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 8.0)
_LEAST_RATE = 0.02  # least learning rate, so that older drafts fade
_FIRST_CHANCE = 0.6  # prior of a draft token's acceptance
_FORGET = 0.1


class ModelDrafts:
    """Learns the worth of the model's drafts from their verification. Not thread-safe.

    Trees and model draft in each step. A row uses the trees' draft if its worth exceeds the mean worth of the
    model's drafts, in this stage, where the trees' worth was similar.

    Args:
        most: largest number of tokens in a draft of the model.

    Attributes:
        acceptance: float32 ``[most]``: probability that the draft tokens up to each position are all
            accepted.
    """

    def __init__(self, most: int) -> None:
        self._chances = np.full(most, _FIRST_CHANCE, np.float32)  # of each token after accepted ones
        self._nums = np.full(most, FEWEST)
        self.acceptance: NDArray[np.float32] = self._chances.cumprod()
        self._any = _Cases(float(self.acceptance.sum()))
        self._stages: dict[StageKey, _Cases] = {}
        self._num_steps = 0
        self._random = np.random.default_rng(0)

    def num_tokens(self, price: float) -> int:
        """Return the number of tokens that the model drafts at this price of a draft token."""
        num_worth = int((self.acceptance >= WORTH * price).sum())
        if num_worth < len(self.acceptance):  # the later tokens are not verified: forget their figures
            self._num_steps += 1
            if self._num_steps % EXPLORE_EVERY == 0:
                self._chances[num_worth:] += _FORGET * (_FIRST_CHANCE - self._chances[num_worth:])
                self.acceptance = self._chances.cumprod()
        return num_worth

    def least(self, stages: Iterable[StageKey | None]) -> NDArray[np.float32]:
        """Return the worth from which on the trees' draft is used, float32 ``[rows]``.

        Args:
            stages: stage of each row; None if it is unknown.
        """
        least = np.array([self._known(stage).least for stage in stages], np.float32)
        least[self._random.random(len(least)) < 1 / EXPLORE_EVERY] = math.inf
        return least

    def learn(
        self, stage: StageKey | None, forgone: float, num_verified: int, num_accepted: int, price: float
    ) -> None:
        """Learn from a verified draft of the model.

        Args:
            forgone: worth of the trees' draft, which was not used.
            num_verified: number of verified tokens of the model's draft.
            price: cost of a draft token, in accepted tokens.
        """
        for place in range(min(num_verified, num_accepted + 1)):
            self._nums[place] += 1
            rate = max(_LEAST_RATE, 1 / self._nums[place])
            self._chances[place] += rate * ((place < num_accepted) - self._chances[place])
        self.acceptance = self._chances.cumprod()
        worth = num_accepted - price * num_verified
        self._any.learn(forgone, worth)
        if stage is not None and (stage in self._stages or len(self._stages) < MOST_STAGES):
            self._stages.setdefault(stage, _Cases(0.0, self._any)).learn(forgone, worth)

    def _known(self, stage: StageKey | None) -> _Cases:
        return self._any if stage is None else self._stages.get(stage, self._any)


class _Cases:
    """Mean gain of the draft model over the trees, binned by the worth of the trees' draft.

    Args:
        first: prior of the worth of the model's drafts.
        other: used for bins with too few drafts.

    Attributes:
        least: trees' drafts of this worth or more are better than the model's.
    """

    def __init__(self, first: float, other: _Cases | None = None) -> None:
        self._other = other
        self._num, self._worth = FEWEST, first  # mean over all drafts
        self._nums = [0] * len(_CENTRES)
        self._gains = [0.0] * len(_CENTRES)  # means
        self.least = self._crossing()

    def learn(self, forgone: float, worth: float) -> None:
        self._num += 1
        self._worth += max(_LEAST_RATE, 1 / self._num) * (worth - self._worth)
        case = bisect_right(_BOUNDS, forgone)
        self._nums[case] += 1
        self._gains[case] += max(_LEAST_RATE, 1 / self._nums[case]) * (worth - forgone - self._gains[case])
        self.least = self._crossing()

    def _crossing(self) -> float:
        """Return the lowest bound from which on the trees' drafts are better."""
        cases = range(len(_CENTRES))
        first = next((case for case in cases if self._gain(case) <= 0), None)
        return math.inf if first is None else _BOUNDS[first - 1] if first else 0.0

    def _gain(self, case: int) -> float:
        if self._nums[case] >= FEWEST:
            return self._gains[case]
        return self._worth - _CENTRES[case] if self._other is None else self._other._gain(case)
