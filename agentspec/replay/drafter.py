"""The interface of a drafting method, the forest, and prompt look-up. Tokens are int32 arrays."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from agentspec.config import DraftConfig, ForestConfig
from agentspec.draft import Draft, Source
from agentspec.forest import Forest, Tokens
from agentspec.replay.calls import Call
from agentspec.stages import StageKey

UNLIMITED_BYTES = 1 << 40
TENANT = "replay"
WORKFLOW = "workflow"


class Drafter(Protocol):
    """A method under test. Calls run concurrently under names. A finished output may help later calls."""

    def start(self, name: str, call: Call) -> None:
        """Start a call. Must not read its response."""

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Take the newly accepted tokens and draft the next ones."""

    def finish(self, name: str, accepted: Tokens) -> None:
        """Take the last tokens, end the call and learn its output."""


class ForestDrafter:
    """A forest in the same use as in an engine.

    Args:
        draft: the drafting rule.
        sources: the shared trees.
        by_stage: False puts every call into one stage, so that there is one shared tree.
        limit_bytes: memory limit of all trees together.
        prior: as in :class:`Forest`.

    Attributes:
        learns: False keeps the outputs of calls that start from now on out of the shared trees.
    """

    def __init__(
        self,
        draft: DraftConfig,
        sources: tuple[Source, ...] = (Source.STAGE,),
        *,
        by_stage: bool = True,
        limit_bytes: int = UNLIMITED_BYTES,
        prior: bytes | None = None,
    ) -> None:
        self._forest = Forest(forest_config(sources, limit_bytes), prior=prior)
        self._draft = draft
        self._by_stage = by_stage
        self.learns = True

    def learn(self, stage: str, output: Tokens) -> None:
        """Add a past output of a stage of the workflow."""
        self._forest.learn(self._key(stage), output)

    def model_states(self) -> list[bytes]:
        """Return what the learned rule has learned, as :meth:`Forest.model_states`."""
        return self._forest.model_states()

    def start(self, name: str, call: Call) -> None:
        """Index the prompt."""
        self._forest.start(
            name,
            self._key(call.stage),
            call.prompt,
            session=call.session,
            draft=self._draft,
            learn=self.learns,
        )

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Take one decode step of one request."""
        return self._forest.step([(name, accepted)], self._draft.max_tokens)[0]

    def finish(self, name: str, accepted: Tokens) -> None:
        """Finish a call. Its output stays in the shared trees if ``learns`` was set at its start."""
        self._forest.observe(name, accepted)
        self._forest.finish(name)

    def _key(self, stage: str) -> StageKey:
        return StageKey(TENANT, (WORKFLOW, stage.replace("/", "_") if self._by_stage else "all"))


class PromptLookup:
    """Prompt look-up like vLLM's ``method: ngram``.

    The match is the longest n-gram at the end of the text, from ``most`` down to ``least`` tokens, that
    occurs earlier in it. Of several occurrences the first counts. The draft is the tokens that followed it
    there.

    With ``only_prompt``, n-grams are found only in the prompt. This is LLMA (arXiv 2304.04487), which has its
    reference texts in the prompt. O(most) per token of the text.
    """

    def __init__(self, num_draft: int, least: int = 2, most: int = 5, *, only_prompt: bool = False) -> None:
        self._num_draft = num_draft
        self._only_prompt = only_prompt
        self._lengths = range(most, least - 1, -1)
        self._texts: dict[str, list[int]] = {}
        self._ends: dict[str, dict[tuple[int, ...], int]] = {}  # n-gram -> end of its first occurrence
        self._num_prompt: dict[str, int] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call. The text is initially the prompt."""
        self._texts[name], self._ends[name] = [], {}
        self._extend(name, call.prompt.tolist())
        self._num_prompt[name] = len(call.prompt)

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Match the end of the text against the part before its last token."""
        self._extend(name, accepted.tolist())
        text, ends = self._texts[name], self._ends[name]
        known = self._num_prompt[name] if self._only_prompt else len(text)
        for length in self._lengths:
            end = ends.get(tuple(text[-length:]), known) if length < len(text) else known
            if end < known:
                return chain(np.array(text[end : min(end + self._num_draft, known)], np.int32), length)
        return Draft()

    def finish(self, name: str, accepted: Tokens) -> None:
        """Forget the call. Prompt look-up learns no outputs."""
        del self._texts[name], self._ends[name], self._num_prompt[name]

    def _extend(self, name: str, tokens: list[int]) -> None:
        """Append tokens. An n-gram can be found once another token follows it."""
        text, ends = self._texts[name], self._ends[name]
        for token in tokens:
            for length in self._lengths:
                if length <= len(text):
                    ends.setdefault(tuple(text[-length:]), len(text))
            text.append(token)


def forest_config(sources: tuple[Source, ...], limit_bytes: int = UNLIMITED_BYTES) -> ForestConfig:
    """Return a configuration with one limit, on all trees of a tenant together."""
    return ForestConfig(
        stage_limit_bytes=UNLIMITED_BYTES,
        session_limit_bytes=UNLIMITED_BYTES,
        tenant_limit_bytes=limit_bytes,
        total_limit_bytes=UNLIMITED_BYTES,
        sources=sources,
    )


def chain(token_ids: Tokens, match_length: int, source: Source = Source.REQUEST) -> Draft:
    """Return a draft of consecutive tokens without estimates. Their probabilities are nan."""
    size = len(token_ids)
    return Draft(
        token_ids,
        np.arange(-1, size - 1, dtype=np.int32),
        np.full(size, np.nan, np.float32),
        float(size),
        match_length,
        source if size else Source.NONE,
    )
