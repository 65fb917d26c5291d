"""A drafter of the replay as a proposer of an engine: methods that need nothing but the text."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from agentspec.config import DraftConfig
from agentspec.draft import Draft
from agentspec.errors import DuplicateRequestError
from agentspec.proposer import Tokens
from agentspec.replay.calls import Call
from agentspec.replay.drafter import Drafter
from agentspec.stages import StageKey

_NO_TOKENS: Tokens = np.empty(0, np.int32)


class LiveDrafter:
    """Implements :class:`agentspec.proposer.Proposer`, to measure a drafter: it mixes all tenants' outputs.

    The drafter's own settings apply, not the request's. A drafter learns every output. So a request with
    ``learn=False`` has no drafts.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._lock = threading.Lock()  # drafters are for one thread
        self._missed: dict[str, list[Tokens]] = {}  # accepted tokens that the drafter has not received

    def start(
        self,
        request_id: str,
        stage: StageKey,
        prompt_ids: Tokens,
        *,
        session: str | None = None,
        prediction_ids: Tokens | None = None,
        draft: DraftConfig | None = None,
        learn: bool = True,
        is_personal: bool = False,
        learns_at_end: bool = False,
    ) -> None:
        """Admit a request. One without a session is a session of its own.

        Raises:
            DuplicateRequestError: a live request has this id.
        """
        if not learn:
            return
        call = Call(stage.name, session or request_id, prompt_ids, _NO_TOKENS)
        with self._lock:
            if request_id in self._missed:
                raise DuplicateRequestError(f"request {request_id!r} is live already")
            self._drafter.start(request_id, call)
            self._missed[request_id] = []

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Take accepted tokens and draft, request by request."""
        with self._lock:
            return [self._draft(request_id, token_ids) for request_id, token_ids in updates]

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take accepted tokens without drafting."""
        if request_id in self._missed:
            self._missed[request_id].append(token_ids)

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """End a request. The drafter learns its output, also if it is not complete."""
        with self._lock:
            if request_id in self._missed:
                self._drafter.finish(request_id, self._take_missed(request_id))
                del self._missed[request_id]

    def _draft(self, request_id: str, token_ids: Tokens) -> Draft:
        if request_id not in self._missed:
            return Draft()
        self._missed[request_id].append(token_ids)
        return self._drafter.step(request_id, self._take_missed(request_id))

    def _take_missed(self, request_id: str) -> Tokens:
        missed = self._missed[request_id]
        token_ids = np.concatenate(missed) if missed else _NO_TOKENS
        missed.clear()
        return token_ids
