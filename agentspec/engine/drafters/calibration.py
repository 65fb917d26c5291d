"""A correction of a drafter's estimates, learned from accepted tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_LOG_ODDS = 8.0
_STEPS_PER_UNIT = 2
_PRIOR = 8  # outcomes that a step's first value is worth
_LEAST_RATE = 0.02  # of learning: older outcomes fade


class Calibration:
    """Maps estimated chances to the share that was accepted.

    A piecewise linear function of the log odds, as the last stage of the learned rule. At first it changes
    nothing.
    """

    def __init__(self) -> None:
        size = int(2 * _MOST_LOG_ODDS * _STEPS_PER_UNIT) + 1
        self._values = 1 / (1 + np.exp(-np.linspace(-_MOST_LOG_ODDS, _MOST_LOG_ODDS, size)))
        self._counts = np.full(size, float(_PRIOR))

    def __call__(self, probs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the calibrated chances, float32 ``[n]``, of estimates ``[n]``."""
        steps, fractions = _place(probs)
        known = self._values[steps] * (1 - fractions) + self._values[steps + 1] * fractions
        return known.astype(np.float32)

    def learn(self, probs: NDArray[np.float32], accepted: NDArray[np.bool_]) -> None:
        """Learn which tokens with these estimates were accepted; both ``[n]``."""
        steps, fractions = _place(probs)
        for step, fraction, truth in zip(steps.tolist(), fractions.tolist(), accepted.tolist(), strict=True):
            for one, share in ((step, 1 - fraction), (step + 1, fraction)):
                self._counts[one] += share
                rate = share * max(_LEAST_RATE, 1 / self._counts[one])
                self._values[one] += rate * (truth - self._values[one])


def _place(probs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the step below each chance, and how far it is from there to the next step."""
    least = 1 / (1 + np.exp(_MOST_LOG_ODDS))
    odds = np.clip(probs.astype(np.float64), least, 1 - least)
    x = (np.log(odds / (1 - odds)) + _MOST_LOG_ODDS) * _STEPS_PER_UNIT
    steps = np.minimum(x.astype(np.int64), int(2 * _MOST_LOG_ODDS * _STEPS_PER_UNIT) - 1)
    return steps, np.clip(x - steps, 0, 1)
