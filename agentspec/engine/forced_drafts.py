"""Tokens that a request's grammar leaves no choice about, as the beginning of its draft.

A JSON schema dictates names of members, constants, and the rest of a value of an ``enum`` once it has begun.
They are drafted even if no tree has seen them. A model that splits the same text into other tokens refuses
them. It verifies them like any other draft, so outputs do not change.
"""

from __future__ import annotations

import numpy as np

from agentspec.draft import Draft, Source
from agentspec.proposer import Tokens


def begun_by(forced: Tokens, tail: Draft) -> Draft:
    """Return forced tokens as a chain, int32 ``[n]``, with a draft of what follows them below its end."""
    size = len(forced)
    probs = np.concatenate([np.ones(size, np.float32), tail.probs])
    origins = np.zeros(len(tail), np.uint8) if tail.origins is None else tail.origins
    return Draft(
        token_ids=np.concatenate([forced, tail.token_ids]),
        parents=np.concatenate([np.arange(-1, size - 1, dtype=np.int32), tail.parents + np.int32(size)]),
        probs=probs,
        score=float(probs.sum()),
        match_length=tail.match_length,
        source=Source.REQUEST,
        origins=np.concatenate([np.zeros(size, np.uint8), origins]),
    )
