"""Tokens that a request's grammar leaves no choice about, at the beginning of its draft.

A JSON schema dictates names of members, constants, and the rest of a value of an ``enum`` once it has begun.
They are drafted in full even if no tree has seen them: only another split of the same text into tokens can
refuse them. The model verifies them like any other draft, so outputs do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agentspec.draft import Draft, Source
from agentspec.proposer import Tokens

Continue = Callable[[list[tuple[str, Tokens]]], list[Draft]]  # drafts behind assumed tokens, by request


def with_forced(
    keys: Sequence[str], drafts: Sequence[Draft], forced: Sequence[Tokens], behind: Continue
) -> list[Draft]:
    """Let each draft begin with the forced tokens, if there are any.

    A draft that has them all stays. Any other one can't be accepted where it differs: it is replaced by the
    forced tokens and what ``behind`` drafts after them.

    Args:
        keys: the proposer's ids of the requests.
        drafts: one per request.
        forced: int32 ``[n]`` of each request, which may be empty.
        behind: called once at most, with the requests whose drafts are replaced.
    """
    replaced = [
        place for place, (draft, ids) in enumerate(zip(drafts, forced, strict=True)) if not _has(draft, ids)
    ]
    if not replaced:
        return list(drafts)
    tails = behind([(keys[place], forced[place]) for place in replaced])
    found = list(drafts)
    for place, tail in zip(replaced, tails, strict=True):
        found[place] = _joined(forced[place], tail)
    return found


def _has(draft: Draft, forced: Tokens) -> bool:
    """Return True if a path of the draft begins with these tokens."""
    here, num_found = -1, 0
    for node, (parent, token) in enumerate(
        zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True)
    ):
        if num_found < len(forced) and parent == here and token == forced[num_found]:
            here, num_found = node, num_found + 1
    return num_found == len(forced)


def _joined(forced: Tokens, tail: Draft) -> Draft:
    """Return the forced tokens as a chain, and the tail below its end."""
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
