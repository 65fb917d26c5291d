"""The results of a forward pass for one sequence, for proposers that draft from hidden states or logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentspec.engine.sampling.state import SamplerState


@dataclass(frozen=True, slots=True, eq=False)
class PassedRow:
    """One sequence's part of a forward pass, after verification.

    Attributes:
        key: the proposer's id of the sequence.
        slot: its KV slot.
        start: number of tokens committed before the pass.
        token_ids: int32 ``[n]``: the sequence's own tokens, then the draft.
        kept: ascending indices in ``token_ids`` of the tokens that stay.
        hidden: ``[n, layers * hidden]``, the layers that the proposer asked for; None if it asked for none.
        logits: float32 ``[m, vocab]`` of the last m tokens; empty within a prompt.
        sampler: sampler state of the sequence, updated by its owner.
    """

    key: str
    slot: int
    start: int
    token_ids: NDArray[np.int32]
    kept: Sequence[int]
    hidden: Tensor | None
    logits: Tensor
    sampler: SamplerState


@runtime_checkable
class PassWatcher(Protocol):
    """Further members of a proposer that drafts from hidden states or logits.

    Attributes:
        hidden_layers: layers with inputs that the proposer needs, as in ``Transformer.run``.
    """

    hidden_layers: tuple[int, ...]

    def watch(self, rows: Sequence[PassedRow]) -> None:
        """Take the results of a pass. The decoding thread calls this after each pass, before :meth:`step`."""
