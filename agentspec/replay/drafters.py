"""What is compared: every method behind one interface. Tokens are int32 arrays."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from agentspec._native import SuffixIndex
from agentspec.config import DraftConfig, ForestConfig
from agentspec.draft import Draft, Source
from agentspec.forest import Forest, Tokens
from agentspec.replay.calls import Call
from agentspec.stages import StageKey

UNLIMITED_BYTES = 1 << 40
TENANT = "replay"
WORKFLOW = "workflow"


class Drafter(Protocol):
    """A method under test. Calls run side by side under names; a finished output may help later calls."""

    def start(self, name: str, call: Call) -> None:
        """A call begins; of its response nothing may be read."""

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Take the newly accepted tokens, draft what follows."""

    def finish(self, name: str, accepted: Tokens) -> None:
        """Take the last tokens; the call is over: learn its output."""


class ForestDrafter:
    """A forest as an engine uses it.

    Args:
        draft: the rule.
        sources: the shared trees.
        by_stage: False puts every call into one stage, so that there is one shared tree.
        limit_bytes: of all trees together.

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
    ) -> None:
        self._forest = Forest(forest_config(sources, limit_bytes))
        self._draft = draft
        self._by_stage = by_stage
        self.learns = True

    def learn(self, stage: str, output: Tokens) -> None:
        """Add a past output of a stage of the workflow."""
        self._forest.learn(self._key(stage), output)

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
        """One request's part of a decode step."""
        return self._forest.step([(name, accepted)], self._draft.max_tokens)[0]

    def finish(self, name: str, accepted: Tokens) -> None:
        """Its output stays in the shared trees, if they learn."""
        self._forest.observe(name, accepted)
        self._forest.finish(name)

    def _key(self, stage: str) -> StageKey:
        return StageKey(TENANT, (WORKFLOW, stage.replace("/", "_") if self._by_stage else "all"))


class PromptLookup:
    """Prompt look-up as vLLM's ``method: ngram`` does it: the longest n-gram at the end of the text, ``most``
    tokens down to ``least``, that occurs earlier in it; of several occurrences the first. The tokens that
    followed it there are the draft.

    With ``only_prompt`` n-grams are found in the prompt alone: LLMA (arXiv 2304.04487), whose reference texts
    are part of the prompt. O(most) per token of the text.
    """

    def __init__(self, num_draft: int, least: int = 2, most: int = 5, *, only_prompt: bool = False) -> None:
        self._num_draft = num_draft
        self._only_prompt = only_prompt
        self._lengths = range(most, least - 1, -1)
        self._texts: dict[str, list[int]] = {}
        self._ends: dict[str, dict[tuple[int, ...], int]] = {}  # n-gram -> end of its first occurrence
        self._num_prompt: dict[str, int] = {}

    def start(self, name: str, call: Call) -> None:
        """The text is the prompt at first."""
        self._texts[name], self._ends[name] = [], {}
        self._extend(name, call.prompt.tolist())
        self._num_prompt[name] = len(call.prompt)

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Look for the end of the text in what is before its last token."""
        self._extend(name, accepted.tolist())
        text, ends = self._texts[name], self._ends[name]
        known = self._num_prompt[name] if self._only_prompt else len(text)
        for length in self._lengths:
            end = ends.get(tuple(text[-length:]), known) if length < len(text) else known
            if end < known:
                return chain(np.array(text[end : min(end + self._num_draft, known)], np.int32), length)
        return Draft()

    def finish(self, name: str, accepted: Tokens) -> None:
        """Nothing is learned."""
        del self._texts[name], self._ends[name], self._num_prompt[name]

    def _extend(self, name: str, tokens: list[int]) -> None:
        """An n-gram can be found once another token follows it."""
        text, ends = self._texts[name], self._ends[name]
        for token in tokens:
            for length in self._lengths:
                if length <= len(text):
                    ends.setdefault(tuple(text[-length:]), len(text))
            text.append(token)


class Datastore:
    """REST (arXiv 2311.08252), its datastore being all finished outputs: behind the longest match of the
    text, of at most ``most`` tokens, the tree of what followed most often.
    """

    def __init__(self, num_draft: int, most: int = 16, reach: int = 16) -> None:
        self._num_draft = num_draft
        self._most = most
        self._index = SuffixIndex(most + reach)
        self._prompts: dict[str, Tokens] = {}
        self._outputs: dict[str, list[Tokens]] = {}

    def start(self, name: str, call: Call) -> None:
        """The end of the prompt is what the first match is looked for with."""
        self._prompts[name] = call.prompt[-self._most :]
        self._outputs[name] = []

    def step(self, name: str, accepted: Tokens) -> Draft:
        """The tree behind the longest match."""
        self._outputs[name].append(accepted)
        context = np.concatenate([self._prompts[name], *self._outputs[name][-self._most :]])[-self._most :]
        length = self._match(context)
        if length == 0:
            return Draft()
        token_ids, parents, probs, score, _ = self._index.draft_tree(
            context[-length:], self._num_draft, alpha=1e9, min_match=length, min_prob=0.0
        )
        return Draft(token_ids, parents, probs.astype(np.float32), score, length, Source.TENANT)

    def finish(self, name: str, accepted: Tokens) -> None:
        """The output joins the datastore."""
        sequence = self._index.open_sequence()
        self._index.append(sequence, np.concatenate([*self._outputs.pop(name), accepted]))
        self._index.close_sequence(sequence)
        del self._prompts[name]

    def _match(self, context: Tokens) -> int:
        """Tokens at the context's end that occur; what is longer than that does not."""
        length = 0
        while length < len(context) and self._index.count(context[-length - 1 :]):
            length += 1
        return length


def forest_config(sources: tuple[Source, ...], limit_bytes: int = UNLIMITED_BYTES) -> ForestConfig:
    """A forest whose only limit is that of all trees of a tenant together."""
    return ForestConfig(
        stage_limit_bytes=UNLIMITED_BYTES,
        session_limit_bytes=UNLIMITED_BYTES,
        tenant_limit_bytes=limit_bytes,
        total_limit_bytes=UNLIMITED_BYTES,
        sources=sources,
    )


def chain(token_ids: Tokens, match_length: int, source: Source = Source.REQUEST) -> Draft:
    """A draft of tokens one after another, without estimates: their probabilities are nan."""
    size = len(token_ids)
    return Draft(
        token_ids,
        np.arange(-1, size - 1, dtype=np.int32),
        np.full(size, np.nan, np.float32),
        float(size),
        match_length,
        source if size else Source.NONE,
    )
