"""The interface between an engine and its proposer.

An engine uses these four methods and never sees a tree: it starts a request, gives the accepted tokens of a
batch and gets drafts, and ends the request. :class:`agentspec.Forest` is the production proposer.
:class:`NoDrafts` switches speculation off. ``TorchEngine(config, proposer)`` takes any other. One that drafts
from the model's hidden states or logits is also a ``PassWatcher`` (``agentspec.engine.passed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agentspec.config import DraftConfig
from agentspec.draft import Draft
from agentspec.stages import StageKey

Tokens = NDArray[np.int32]


class Proposer(Protocol):
    """Drafts for live requests. Safe to call from several threads."""

    def start(
        self,
        request_id: str,
        stage: StageKey,
        prompt_ids: Tokens,
        *,
        session: str | None = None,
        prediction_ids: Tokens | None = None,
        draft: DraftConfig = ...,
        learn: bool = True,
        is_personal: bool = False,
        learns_at_end: bool = False,
    ) -> None:
        """Admit a request. ``learn=False``: its output joins no tree that outlives it.

        ``is_personal``: its output may hold a person's data. Models that engines share learn nothing of it.
        ``learns_at_end``: no tree but its own holds the output before :meth:`finish` says what of it.
        """

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Take each request's newly accepted tokens (int32, may be empty) and draft for all of them.

        ``min_prob`` is the least estimate of a token that is worth its cost. Others are not drafted.
        Returns one Draft per update, in order. The Draft is empty if there is no proposal.
        """

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take newly accepted tokens without drafting."""

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Forget the live request. Keep its output for others if ``learn``, or ``output`` in its place."""


@runtime_checkable
class Learner(Protocol):
    """Further methods of a proposer that keeps past outputs, such as the forest."""

    def learn(self, stage: StageKey, token_ids: Tokens) -> None:
        """Add one past output."""

    def evict(self, stage: StageKey) -> None:
        """Forget everything that the stage's own tree has learned."""

    def memory_bytes(self, stage: StageKey | None = None) -> int:
        """Return the bytes of a stage's own tree, or of everything."""

    def save(self, path: Path, *, vocabulary: str) -> Any:
        """Write everything to a file and return a dataclass of its sizes. Raises ForestFileError."""

    def load(self, path: Path, *, vocabulary: str) -> Any:
        """Add the content of a saved file and return a dataclass of its sizes. Raises ForestFileError."""


@runtime_checkable
class TextProposer(Proposer, Protocol):
    """A proposer that needs only texts to draft, such as the forest.

    So it can draft behind assumed tokens, and :meth:`step` can draft the beginning of an output.
    """

    def draft_after(
        self, assumed: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Draft as if some tokens followed each request's output. Changes nothing."""


class OutputSharing(Protocol):
    """Takes the outputs that a proposer learns, for other engines."""

    def share(
        self,
        stage: StageKey,
        token_ids: Tokens | Sequence[int],
        *,
        subject: bytes = b"",
        session: str | None = None,
    ) -> None:
        """Take a finished output within microseconds. Never raises.

        ``token_ids`` (int32 ``[n]``, or a sequence) must not change any more. ``session`` is the run that
        it belongs to.
        """


class NoDrafts:
    """The proposer that never proposes."""

    def start(self, request_id: str, stage: StageKey, prompt_ids: Tokens, **_: object) -> None:
        """Do nothing."""

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Return one empty draft per update."""
        return [Draft() for _ in updates]

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Do nothing."""

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Do nothing."""
