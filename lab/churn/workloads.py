"""Outputs that stress eviction: the oldest free little memory, and the input changes abruptly."""

from __future__ import annotations

import numpy as np

from agentspec.forest import Tokens
from lab.churn.texts import Texts


class Router(Texts):
    """Outputs of one to three tokens with a few long ones among them; then long ones only.

    Short outputs, a hundred for each long one, fill the budget when long ones need room.
    """

    CHANGE = 0.5  # progress at which the input changes
    SHORT = 0.99  # share of the outputs until then
    MOST_TOKENS = 3

    def next(self, progress: float) -> tuple[int, Tokens]:
        """Return a dataset's number and an output, as for all texts; short ones are of the first."""
        number, text = super().next(progress)
        if progress >= self.CHANGE or self._random.random() >= self.SHORT:
            return number, text
        return 0, text[: self._random.integers(1, self.MOST_TOKENS + 1)]


class Popular(Texts):
    """One output of 1,000 tokens repeated, with a few others among them; then others only.

    Evicting all of its occurrences frees no more memory than one.
    """

    VARIED = 1.0
    CHANGE = 0.8
    POPULAR = 0.96  # share of the outputs until then: 24 for each other one
    NUM_TOKENS = 1_000

    def __init__(self, datasets: list[list[Tokens]]) -> None:
        super().__init__(datasets)
        self._popular = np.resize(self._every_token, self.NUM_TOKENS)

    def next(self, progress: float) -> tuple[int, Tokens]:
        """Return a dataset's number and an output, as for all texts; the popular one is of the first."""
        number, text = super().next(progress)
        if progress >= self.CHANGE or self._random.random() >= self.POPULAR:
            return number, text
        return 0, self._popular
