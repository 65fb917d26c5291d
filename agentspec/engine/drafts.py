"""Changes of drafts before they are verified: cut to their room, begun by tokens that a grammar forces.

A JSON schema dictates names of members, constants, and the rest of a value of an ``enum`` once it has begun.
They are drafted even if no tree has seen them. A model that splits the same text into other tokens refuses
them. It verifies them like any other draft, so outputs do not change.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def known(drafts: Sequence[Draft], vocab_size: int) -> Sequence[Draft]:
    """Return the drafts, each up to its first token that the model doesn't have.

    A tree may have learned from another tokenizer's output; such a token would break the whole pass.
    """
    token_ids = np.concatenate([draft.token_ids for draft in drafts])
    if not len(token_ids) or (token_ids.min() >= 0 and token_ids.max() < vocab_size):
        return drafts
    is_foreign = [(draft.token_ids < 0) | (draft.token_ids >= vocab_size) for draft in drafts]
    return [
        cut(draft, int(foreign.argmax()) if foreign.any() else len(draft))
        for draft, foreign in zip(drafts, is_foreign, strict=True)
    ]


def cut(draft: Draft, room: int) -> Draft:
    """Return the draft's first ``room`` tokens. A parent precedes its children, so the result is a tree."""
    if len(draft) <= room:
        return draft
    return Draft(
        token_ids=draft.token_ids[:room],
        parents=draft.parents[:room],
        probs=draft.probs[:room],
        score=float(draft.probs[:room].sum()),
        match_length=draft.match_length,
        source=draft.source,
        origins=None if draft.origins is None else draft.origins[:room],
    )
