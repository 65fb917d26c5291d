"""A draft: the tokens that the model verifies in one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Source(IntEnum):
    """What proposed a draft token: a tree, or a model. The values are those of the native core.

    ``REQUEST`` stands for the request itself: its prompt, prediction, output and grammar. ``WORKFLOW`` stands
    for any parent path of the stage.
    """

    NONE = 0
    REQUEST = 1
    SESSION = 2
    STAGE = 3
    WORKFLOW = 4
    TENANT = 5
    MODEL = 6  # the core does not run it


SHARED = (Source.STAGE, Source.WORKFLOW, Source.TENANT)  # all engines of a fleet learn the same outputs
TREES = tuple(source for source in Source if source is not Source.MODEL)


def reported(counts: Mapping[Source, int]) -> list[Source]:
    """Return the sources whose counts are reported: all trees, and the model if it has drafted."""
    return [source for source in Source if source in TREES[1:] or counts.get(source)]


class Origin(IntEnum):
    """Where the output was written that a draft token was learned from; the smallest if from several.

    The values are those of the native core.
    """

    LOCAL = 0
    FLEET = 1
    SNAPSHOT = 2


def _ids() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


def _probs() -> NDArray[np.float32]:
    return np.empty(0, np.float32)


@dataclass(slots=True, eq=False)
class Draft:
    """Draft tokens as a tree. A chain is the special case ``parents == [-1, 0, 1, ...]``.

    Attributes:
        token_ids: int32 ``[n]``.
        parents: int32 ``[n]``, index of each token's parent in this draft, -1 = the root (the last
            accepted token). A parent precedes its children.
        probs: float32 ``[n]``, estimated probability D(N) that the token is accepted.
        score: sum of ``probs``, the expected number of accepted tokens (Algorithm 1).
        match_length: length, in tokens, of the matched context; a begin mark counts as one.
        source: tree that proposed the draft.
        origins: uint8 ``[n]``, the :class:`Origin` of each token after its context; None: all are local.
    """

    token_ids: NDArray[np.int32] = field(default_factory=_ids)
    parents: NDArray[np.int32] = field(default_factory=_ids)
    probs: NDArray[np.float32] = field(default_factory=_probs)
    score: float = 0.0
    match_length: int = 0
    source: Source = Source.NONE
    origins: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if no token has a sibling: every parent is the preceding token."""
        return bool((self.parents == np.arange(-1, len(self.parents) - 1, dtype=np.int32)).all())
