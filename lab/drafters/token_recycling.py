"""Token Recycling (arXiv 2408.08696): the candidates that the model itself gave after each token."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.config import DraftConfig
from agentspec.draft import Draft, Source
from agentspec.engine.passed import PassedRow
from agentspec.proposer import Tokens
from agentspec.stages import StageKey
from lab.drafters.live_requests import LiveRequests
from lab.drafters.static_tree import fill, path_shape, tree_shape

NUM_CANDIDATES = 8  # the paper's k


@dataclass(slots=True, eq=False)
class _Request:
    draft: DraftConfig
    table: NDArray[np.int32]  # its tenant's
    learns: bool
    last: int | None


class TokenRecycler:
    """Implements :class:`agentspec.proposer.Proposer` and :class:`agentspec.engine.passed.PassWatcher`.

    A tenant's table has, for each token, the model's likeliest tokens after it, wherever it was last
    computed: in an output or in a rejected draft. A draft is a tree of a fixed shape, filled from the table,
    which is empty at first.

    Args:
        vocab_size: tokens of the model. A table takes 32 bytes for each.
        num_draft: nodes of the tree, or tokens of the chain. The paper has 80.
    """

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, num_draft: int = 80) -> None:
        self._table_shape = vocab_size, min(NUM_CANDIDATES, vocab_size)
        num_candidates = self._table_shape[1]
        self._shapes = {"tree": tree_shape(num_draft, num_candidates), "chain": path_shape(num_draft)}
        self._lock = threading.Lock()
        self._tables: dict[str, NDArray[np.int32]] = {}  # by tenant; guarded by the lock
        self._requests = LiveRequests[_Request]()

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
        """Admit a request. Its prompt alone gives no candidates.

        Raises:
            DuplicateRequestError: a live request has this id.
        """
        last = int(prompt_ids[-1]) if len(prompt_ids) else None
        with self._lock:
            if stage.tenant not in self._tables:
                self._tables[stage.tenant] = np.full(self._table_shape, -1, np.int32)
            table = self._tables[stage.tenant]
        self._requests.add(
            request_id, _Request(draft or DraftConfig(), table, learn and not learns_at_end, last)
        )

    def watch(self, rows: Sequence[PassedRow]) -> None:
        """Note the model's likeliest tokens after every token that it gave logits for."""
        for row in rows:
            request = self._requests.get(row.key)
            if request is not None and request.learns and len(row.logits):
                best = row.logits.topk(self._table_shape[1], 1).indices
                request.table[row.token_ids[-len(row.logits) :]] = best.cpu().numpy()

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take accepted tokens without drafting."""
        if len(token_ids):
            self._requests[request_id].last = int(token_ids[-1])

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Take accepted tokens and fill a tree each. Without estimates ``min_prob`` is ignored."""
        for request_id, token_ids in updates:
            self.observe(request_id, token_ids)
        return [self._draft(self._requests[request_id], max_tokens) for request_id, _ in updates]

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Forget a request. The table stays."""
        self._requests.remove(request_id)

    def _draft(self, request: _Request, max_tokens: int) -> Draft:
        if request.draft.is_off or request.last is None:
            return Draft()
        shape = self._shapes[request.draft.mode][: min(max_tokens, request.draft.max_tokens)]

        def after(token: int) -> list[int]:
            row: list[int] = request.table[token].tolist()
            return row if row[0] >= 0 else []

        return fill(shape, request.last, after, Source.MODEL)
