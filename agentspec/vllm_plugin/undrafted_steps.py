"""Steps without drafts, in vLLM's model runner V1: they cost what they cost without speculation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class NoDrafts(NamedTuple):
    """What the runner needs to know of a step without drafts, in place of vLLM's ``SpecDecodeMetadata``.

    Attributes:
        logits_indices: int32 ``[rows]``, the last position of each row.
        num_draft_tokens: a zero for each row.
    """

    logits_indices: Any
    num_draft_tokens: list[int]


class UndraftedSteps:
    """Has a model runner prepare and sample steps without drafts as it does without speculation.

    With speculation vLLM makes index tensors for the drafts of every step, and takes the sampler for drafts.
    That is a tenth of a small model's step. Only that sampler counts the tokens of requests with a thinking
    budget: steps with such requests stay as they are.

    Args:
        runner: vLLM's ``GPUModelRunner``. Two of its methods are replaced.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._index_drafts, self._sample = runner._calc_spec_decode_metadata, runner._sample
        runner._calc_spec_decode_metadata, runner._sample = self._indices, self._samples

    def _indices(self, num_draft_tokens: NDArray[np.int32], num_scheduled: NDArray[np.int32]) -> Any:
        """Return the positions whose logits the step needs.

        Args:
            num_draft_tokens: int32 ``[rows]``.
            num_scheduled: int32 ``[rows]``, tokens of all rows up to each.
        """
        if num_draft_tokens.any() or self._has_budgets():
            return self._index_drafts(num_draft_tokens, num_scheduled)
        num_rows = len(num_draft_tokens)
        return NoDrafts(self._runner.query_start_loc.gpu[1 : num_rows + 1] - 1, [0] * num_rows)

    def _samples(self, logits: Any, indices: Any) -> Any:
        """Sample from the logits of a step."""
        return self._sample(logits, None if isinstance(indices, NoDrafts) else indices)

    def _has_budgets(self) -> bool:
        holder = getattr(self._runner.input_batch, "thinking_budget_state_holder", None)
        return holder is not None and bool(holder.has_tracked_requests())
