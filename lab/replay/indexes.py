"""Drafters with one index of finished outputs: REST's datastore, and the paper's trees per stage."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from agentspec._native import SuffixIndex
from agentspec.config import DraftConfig
from agentspec.draft import Draft, Source
from agentspec.forest import Tokens
from agentspec.replay.calls import Call

DEPTH = 64  # tokens of context


class Datastore:
    """REST (arXiv 2311.08252), with all finished outputs as the datastore.

    The longest match of the text's end has at most ``most`` tokens. The draft is the tree of its most
    frequent continuations.
    """

    def __init__(self, num_draft: int, most: int = 16, reach: int = 16) -> None:
        self._num_draft = num_draft
        self._most = most
        self._index = SuffixIndex(most + reach)
        self._prompts: dict[str, Tokens] = {}
        self._outputs: dict[str, list[Tokens]] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call. The end of the prompt is the context of the first match."""
        self._prompts[name] = call.prompt[-self._most :]
        self._outputs[name] = []

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Draft the tree of continuations of the longest match."""
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
        """Finish a call and add its output to the datastore."""
        sequence = self._index.open_sequence()
        self._index.append(sequence, np.concatenate([*self._outputs.pop(name), accepted]))
        self._index.close_sequence(sequence)
        del self._prompts[name]

    def _match(self, context: Tokens) -> int:
        """Return the length of the longest suffix of the context that occurs in the datastore."""
        length = 0
        while length < len(context) and self._index.count(context[-length - 1 :]):
            length += 1
        return length


class StageTrees:
    """The paper's rule with only a tree of finished outputs per stage (section 4.4).

    A context may begin in the prompt, as in a forest.
    """

    def __init__(self, draft: DraftConfig) -> None:
        self._is_tree = draft.mode == "tree"
        self._rule = (draft.max_tokens, draft.alpha, draft.min_match, draft.min_prob, draft.doubt)
        self._trees: defaultdict[str, SuffixIndex] = defaultdict(lambda: SuffixIndex(DEPTH + 1))
        self._calls: dict[str, Call] = {}
        self._outputs: dict[str, Tokens] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call. The prompt serves as context only: no tokens are drafted from it."""
        self._calls[name] = call
        self._outputs[name] = np.empty(0, np.int32)

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Return the best draft of the stage's tree."""
        call = self._calls[name]
        output = self._outputs[name] = np.append(self._outputs[name], accepted)
        context = np.append(call.prompt[-DEPTH:], output[-DEPTH:])[-DEPTH:]
        tree = self._trees[call.stage]
        draft = tree.draft_tree if self._is_tree else tree.draft_chain
        token_ids, parents, probs, score, match_length = draft(context, *self._rule)
        source = Source.STAGE if len(token_ids) else Source.NONE
        return Draft(token_ids, parents, probs.astype(np.float32), score, match_length, source)

    def finish(self, name: str, accepted: Tokens) -> None:
        """Finish a call and add its output to its stage's tree."""
        tree = self._trees[self._calls.pop(name).stage]
        sequence = tree.open_sequence()
        tree.append(sequence, np.append(self._outputs.pop(name), accepted))
        tree.close_sequence(sequence)
