"""Lookahead decoding (arXiv 2402.02057): n-grams that the model writes beside the text, by Jacobi steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentspec.config import DraftConfig, check_int
from agentspec.draft import Draft, Source
from agentspec.engine.passed import PassedRow
from agentspec.proposer import Tokens
from agentspec.stages import StageKey
from lab.drafters.live_requests import LiveRequests
from lab.drafters.static_tree import unjudged

Ngram = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Request:
    """One request: its window, newest row last, and the n-grams it has met, by their first token."""

    draft: DraftConfig
    rows: list[list[int]]
    last: int
    pool: dict[int, OrderedDict[Ngram, None]] = field(default_factory=dict)
    num_branch: int = 0  # nodes of the window in the last draft, which come first


class Lookahead:
    """Implements :class:`agentspec.proposer.Proposer` and :class:`agentspec.engine.passed.PassWatcher`.

    A draft has two parts. The window (the paper's lookahead branch) has ``ngram - 1`` rows of ``window``
    tokens. A column continues a guess of its place in the text, and the model's answer is the column's next
    token. With that, the column is an n-gram. The other part verifies the n-grams that begin with the last
    token. So most draft tokens are never meant to be accepted. It drafts trees only.

    Args:
        window: the paper's W.
        ngram: the paper's N.
        guesses: most n-grams verified in a step, the paper's G. So many are kept for each first token.

    Raises:
        ConfigError: one of them is out of range.
    """

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, window: int = 5, ngram: int = 4, guesses: int = 5) -> None:
        check_int("window", window, 1, 64)
        check_int("ngram", ngram, 2, 16)
        check_int("guesses", guesses, 1, 64)
        self._window = window
        self._num_rows = ngram - 1
        self._guesses = guesses
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
        """Admit a request. Its window begins with tokens of the prompt, and the pool with its n-grams.

        Raises:
            DuplicateRequestError: a live request has this id.
        """
        prompt = prompt_ids.tolist() or [0]
        size = self._num_rows * self._window
        guess = (prompt * (1 + size // len(prompt)))[-size:]
        rows = [guess[i * self._window :][: self._window] for i in range(self._num_rows)]
        request = _Request(draft or DraftConfig(), rows, prompt[-1])
        for begin in range(len(prompt) - self._num_rows):
            self._keep(request, tuple(prompt[begin : begin + self._num_rows + 1]))
        self._requests.add(request_id, request)

    def watch(self, rows: Sequence[PassedRow]) -> None:
        """Take the model's answers to the windows: each column's next token completes an n-gram."""
        for row in rows:
            request = self._requests.get(row.key)
            if request is None or not request.num_branch or len(row.logits) <= request.num_branch:
                continue  # there was no draft, or no room for it
            size = self._window
            first = 1 + request.num_branch - size  # behind the last own token: the newest row
            answers = row.logits[first : first + size].argmax(1).tolist()
            columns = zip(*request.rows, answers, strict=True)
            for ngram in columns:
                self._keep(request, ngram)
            request.rows = [*request.rows[1:], answers]

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take accepted tokens without drafting."""
        request = self._requests[request_id]
        request.num_branch = 0
        if len(token_ids):
            request.last = int(token_ids[-1])

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Take accepted tokens; return windows and n-grams. Without estimates ``min_prob`` is ignored."""
        drafts = []
        for request_id, token_ids in updates:
            self.observe(request_id, token_ids)
            request = self._requests[request_id]
            most = min(max_tokens, request.draft.max_tokens) if request.draft.mode == "tree" else 0
            drafts.append(self._draft(request, most))
        return drafts

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Forget a request and its n-grams."""
        self._requests.remove(request_id)

    def _draft(self, request: _Request, most: int) -> Draft:
        tokens = [token for row in request.rows for token in row]
        if len(tokens) > most:
            return Draft()
        parents = [place - 1 for place in range(self._window)]  # the oldest row continues the text
        parents += range((self._num_rows - 1) * self._window)  # the others continue the row before
        request.num_branch = len(tokens)
        children: dict[tuple[int, int], int] = {}
        for node, child in enumerate(zip(parents, tokens, strict=True)):
            children.setdefault(child, node)
        for ngram in reversed(request.pool.get(request.last, ())):
            if len(tokens) + len(ngram) > most:
                break
            node = -1
            for token in ngram:  # equal siblings become one: the verifier follows the first
                following = children.setdefault((node, token), len(tokens))
                if following == len(tokens):
                    tokens.append(token)
                    parents.append(node)
                node = following
        return unjudged(tokens, parents, Source.MODEL)

    def _keep(self, request: _Request, ngram: Ngram) -> None:
        """Note an n-gram by its first token, as the most recent one."""
        known = request.pool.setdefault(ngram[0], OrderedDict())
        known[ngram[1:]] = None
        known.move_to_end(ngram[1:])
        if len(known) > self._guesses:
            known.popitem(last=False)
