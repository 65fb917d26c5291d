"""The paper's rule without the request's own tree (paper, section 4.4)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from agentspec._native import SuffixIndex
from agentspec.config import DraftConfig
from agentspec.draft import Draft, Source
from agentspec.forest import Tokens
from agentspec.replay.calls import Call

DEPTH = 64  # tokens of context


class StageTrees:
    """A drafter with only a tree of finished outputs per stage: the paper's global tree.

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
