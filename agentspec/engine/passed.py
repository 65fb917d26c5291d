"""What a forward pass computed for one sequence, for proposers that draft from it."""

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
        start: tokens that were committed before.
        token_ids: int32 ``[n]``: its own tokens, then the draft.
        kept: the tokens that stay: indices in ``token_ids``, ascending.
        hidden: ``[n, layers * hidden]``, the layers that the proposer asked for; None if none.
        logits: float32 ``[m, vocab]`` of the last m tokens; empty within a prompt.
        sampler: of the sequence, which its owner keeps up to date.
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
    """Further members of a proposer that drafts from what the model computes.

    Attributes:
        hidden_layers: layers whose inputs it needs, as in ``Transformer.run``.
    """

    hidden_layers: tuple[int, ...]

    def watch(self, rows: Sequence[PassedRow]) -> None:
        """Take what a pass computed. Called by the decoding thread after each pass, before :meth:`step`."""
