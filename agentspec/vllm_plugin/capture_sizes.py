"""The token counts of a step that CUDA graphs were captured for: the steps of a GPU's staircase.

vLLM pads a step to the next captured size. So a draft token is free up to that size, and the one beyond it
costs a whole stair. The price of a draft token (``StepCost``) is the mean slope. It is learned from true
counts, not from padded ones: those hardly vary, so they give no evidence where tokens are free (lab/log).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class CaptureSizes:
    """The captured sizes of one engine, in tokens; none if they are unknown or it has no graphs."""

    def __init__(self, sizes: Iterable[int] = ()) -> None:
        self._sizes = sorted({size for size in sizes if size > 0})

    def padded(self, num_tokens: int) -> int:
        """Return the tokens that a step of ``num_tokens`` computes. Steps above all sizes have no graph."""
        index = bisect_left(self._sizes, num_tokens)
        return self._sizes[index] if num_tokens > 0 and index < len(self._sizes) else num_tokens

    def worth_verifying(
        self, chances: NDArray[np.floating], lengths: Sequence[int], num_other_tokens: int, price: float
    ) -> Sequence[int]:
        """Return how many draft tokens of each row are worth the tokens that the step is padded to.

        Drafts are cut to a captured size if that saves more than it loses. The least likely tokens go first.

        Args:
            chances: float ``[sum of lengths]``, row after row: the chance of acceptance of each draft token,
                at least the price, never rising in a row.
            lengths: draft tokens of each row.
            num_other_tokens: tokens of the step without drafts, at least one per row.
            price: cost of one more token, in accepted tokens.
        """
        num_drafted = len(chances)
        if not self._sizes or self.padded(num_other_tokens) >= num_other_tokens + num_drafted:
            return lengths
        stairs = [
            size - num_other_tokens for size in self._sizes if 0 < size - num_other_tokens < num_drafted
        ]
        order = np.argsort(-chances, kind="stable")  # of equal chances in a row the earlier token stays
        accepted = np.concatenate(([0.0], np.cumsum(chances[order], dtype=np.float64)))
        best = max(  # the first of equals
            (0, *stairs, num_drafted),
            key=lambda number: accepted[number] - price * self.padded(num_other_tokens + number),
        )
        rows = np.repeat(np.arange(len(lengths)), list(lengths))[order[:best]]
        kept: list[int] = np.bincount(rows, minlength=len(lengths)).tolist()
        return kept
