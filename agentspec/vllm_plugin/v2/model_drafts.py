"""The drafts of vLLM's own draft model, such as an EAGLE head: where they are worth more than the trees'.

Does not import vLLM.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from agentspec.stages import StageKey
from agentspec.vllm_plugin.v2.slots import WORTH

EXPLORE_EVERY = 64  # rows that the trees may win, and steps at a price that the model is not worth
MOST_STAGES = 1024  # clients name them; further ones use the figures of all stages
FEWEST = 4  # drafts of a case before their mean counts
_BOUNDS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the cases: what the trees' draft was worth
_CENTRES = (0.1, 0.375, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 8.0)
_LEAST_RATE = 0.02  # of learning: older drafts fade
_FIRST_CHANCE = 0.6  # of a draft token, before any was verified
_FORGET = 0.1


class ModelDrafts:
    """Learns from the model's verified drafts. One thread calls it.

    In each step the trees draft, and the model does. A row gets the trees' draft if that is worth more than
    the model's drafts were in this stage, where the trees' drafts were worth as much.

    Args:
        most: most tokens of a draft of the model.

    Attributes:
        acceptance: float32 ``[most]``: the chance that the first draft tokens up to each are all accepted.
    """

    def __init__(self, most: int) -> None:
        self._chances = np.full(most, _FIRST_CHANCE, np.float32)  # of each token, if those before it are
        self._nums = np.full(most, FEWEST)
        self.acceptance: NDArray[np.float32] = self._chances.cumprod()
        self._any = _Cases(float(self.acceptance.sum()))
        self._stages: dict[StageKey, _Cases] = {}
        self._num_steps = 0
        self._random = np.random.default_rng(0)

    def num_tokens(self, price: float) -> int:
        """Return how many tokens the model is to draft at this price of a draft token."""
        num_worth = int((self.acceptance >= WORTH * price).sum())
        if num_worth < len(self.acceptance):  # tokens that are not verified: forget their chances
            self._num_steps += 1
            if self._num_steps % EXPLORE_EVERY == 0:
                self._chances[num_worth:] += _FORGET * (_FIRST_CHANCE - self._chances[num_worth:])
                self.acceptance = self._chances.cumprod()
        return num_worth

    def least(self, stages: Iterable[StageKey | None]) -> NDArray[np.float32]:
        """Return what the trees' draft must be worth to be used, float32 ``[rows]``.

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
            forgone: what the trees' draft would have been worth.
            num_verified: verified tokens of the model's draft.
            price: of a draft token, in accepted tokens.
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
    """What the model's drafts were worth more than the trees', by the worth of the trees'.

    Args:
        first: worth of the model's drafts, before any is known.
        other: counts where too few drafts are known.

    Attributes:
        least: the trees' drafts of this worth and above are worth more.
    """

    def __init__(self, first: float, other: _Cases | None = None) -> None:
        self._other = other
        self._num, self._worth = FEWEST, first  # of all drafts, the mean
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
        """Return the bound up to which the model's drafts are worth more."""
        cases = range(len(_CENTRES))
        first = next((case for case in cases if self._gain(case) <= 0), None)
        return math.inf if first is None else _BOUNDS[first - 1] if first else 0.0

    def _gain(self, case: int) -> float:
        if self._nums[case] >= FEWEST:
            return self._gains[case]
        return self._worth - _CENTRES[case] if self._other is None else self._other._gain(case)
