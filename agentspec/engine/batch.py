"""The input of one forward pass: runs of new tokens, each of one KV slot. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, eq=False)
class Segment:
    """A run of new tokens of one KV slot in one forward pass.

    A tree may be computed in several passes. Its earlier tokens then precede the new ones in the slot.

    Attributes:
        slot: the KV slot that the tokens belong to.
        start: tokens in the slot: committed ones, and the earlier ones of the tree.
        token_ids: int32 ``[n]``, n >= 1.
        parents: None for a causal run, else int32 ``[num_earlier + n]``: index of each token's parent in the
            tree, -1 = the committed context (token 0 has -1). A parent precedes its children.
        logits_from: logits are computed for ``token_ids[logits_from:]``; n = none.
        num_earlier: earlier tokens of the tree; 0 without ``parents``.
    """

    slot: int
    start: int
    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32] | None = None
    logits_from: int = 0
    num_earlier: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Entries of the slot in use once the segment is written."""
        return self.start + len(self.token_ids)

    @property
    def num_context(self) -> int:
        """Committed tokens in the slot."""
        return self.start - self.num_earlier

    @property
    def first_place(self) -> int:
        """Position in the text of the first new token, or a lower bound of it."""
        return self.start if not self.num_earlier or self.is_chain else self.num_context

    @property
    def is_chain(self) -> bool:
        """True if every token's parent is the token before."""
        if self.parents is None:
            return True
        return bool((self.parents == np.arange(-1, len(self.parents) - 1)).all())

    def depths(self) -> NDArray[np.int64]:
        """int64 ``[num_earlier + n]``: tokens between each one and the committed context, 0 for the first."""
        if self.parents is None:
            return np.arange(len(self.token_ids))
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return np.array(depths)

    def positions(self) -> NDArray[np.int64]:
        """int64 ``[n]``: the place of each new token in its text."""
        return self.num_context + self.depths()[self.num_earlier :]

    def ancestry(self) -> NDArray[np.bool_]:
        """bool ``[n, num_earlier + n]``: row i is true at new token i's ancestors and at i itself."""
        if self.parents is None:
            return np.tri(len(self.token_ids), dtype=np.bool_)
        lineage = np.eye(len(self.parents), dtype=np.bool_)
        for child, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                lineage[child] |= lineage[parent]
        return lineage[self.num_earlier :]
