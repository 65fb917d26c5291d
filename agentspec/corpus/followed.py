"""Outputs that other engines are writing, followed token by token.

When an output is over, its engine publishes it as any other. Until then it is a request in the trees here,
with no prompt, and it is forgotten at the end. So nothing of a part is kept, counted or saved.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agentspec.corpus.batch import Part
from agentspec.corpus.output import Tokens
from agentspec.corpus.written import MOST_SHOWN_TOKENS
from agentspec.draft import Origin
from agentspec.stages import StageKey

logger = logging.getLogger("agentspec")

MOST_FOLLOWED = 1024
LONGEST_PAUSE_S = 300.0  # between two parts: then its engine is gone
_NO_TOKENS: Tokens = np.empty(0, np.int32)

Name = tuple[str, bytes, int]  # tenant, origin, number of the output


class FollowingTrees(Protocol):
    """The trees' requests. The methods are those of :class:`agentspec.Forest`."""

    def start(
        self, request_id: str, stage: StageKey, prompt_ids: Tokens, *, origin: Origin = Origin.LOCAL
    ) -> None:
        """Begin an output of a stage, which is written at ``origin``."""

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Add tokens to it."""

    def finish(self, request_id: str, learn: bool = True) -> None:
        """End it; without ``learn`` the trees forget it."""


@dataclass(slots=True)
class _Followed:
    request_id: str
    num_tokens: int
    last_s: float


class FollowedOutputs:
    """The outputs that are followed now. Used by one thread.

    An output whose beginning or middle was missed is not followed.

    Args:
        trees: what learns.
        vocab_size: tokens from it on are refused.
        clock: monotonic seconds.
    """

    def __init__(
        self, trees: FollowingTrees, vocab_size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._trees = trees
        self._vocab_size = vocab_size
        self._clock = clock
        self._followed: OrderedDict[Name, _Followed] = OrderedDict()  # by the time of the last part

    def __len__(self) -> int:
        return len(self._followed)

    def take(self, tenant: str, origin: bytes, part: Part) -> None:
        """Follow an output further, or begin to, or end it. A failure ends it, and is logged."""
        name = tenant, origin, part.number
        try:
            self._take(name, part)
        except Exception:
            logger.exception("an output of tenant %s is not followed", tenant)
            self._drop(name)

    def miss(self, tenant: str, origin: bytes, part: Part) -> None:
        """Forget the output of a part that comes too late."""
        self._drop((tenant, origin, part.number))

    def drop_tenant(self, tenant: str) -> None:
        """Forget all outputs of a tenant that are followed."""
        for name in [name for name in self._followed if name[0] == tenant]:
            self._drop(name)

    def drop_silent(self) -> None:
        """Forget the outputs of engines that have ended."""
        while self._followed:
            name, followed = next(iter(self._followed.items()))
            if self._clock() < followed.last_s + LONGEST_PAUSE_S:
                break
            self._drop(name)

    def drop_all(self) -> None:
        """Forget all outputs that are followed."""
        for name in list(self._followed):
            self._drop(name)

    def _take(self, name: Name, part: Part) -> None:
        followed = self._followed.get(name)
        tokens = part.token_ids
        if followed is None and part.begin == 0 and len(tokens) and len(self._followed) < MOST_FOLLOWED:
            followed = self._begin(name, StageKey(name[0], part.path))
        if followed is None:
            return
        is_next = len(tokens) > 0 and part.begin == followed.num_tokens
        if not is_next or part.begin + len(tokens) > MOST_SHOWN_TOKENS or not self._are_known(tokens):
            self._drop(name)
            return
        self._trees.observe(followed.request_id, tokens)
        followed.num_tokens += len(tokens)
        followed.last_s = self._clock()
        self._followed.move_to_end(name)

    def _begin(self, name: Name, stage: StageKey) -> _Followed:
        tenant, origin, number = name
        followed = _Followed(f"corpus/{tenant}/{origin.hex()}/{number}", 0, self._clock())
        self._trees.start(followed.request_id, stage, _NO_TOKENS, origin=Origin.FLEET)
        self._followed[name] = followed
        return followed

    def _drop(self, name: Name) -> None:
        followed = self._followed.pop(name, None)
        if followed is None:
            return
        try:
            self._trees.finish(followed.request_id, learn=False)
        except Exception:
            logger.exception("the followed output %r was not forgotten", followed.request_id)

    def _are_known(self, tokens: Tokens) -> bool:
        return int(tokens.min()) >= 0 and int(tokens.max()) < self._vocab_size
