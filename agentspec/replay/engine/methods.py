"""The compared drafting methods, each as the engine's proposer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from agentspec.config import DraftConfig, ForestConfig
from agentspec.draft import Draft
from agentspec.forest import Forest, Tokens
from agentspec.proposer import NoDrafts, Proposer
from agentspec.replay.calls import Call
from agentspec.replay.drafters.drafter import Drafter, PromptLookup
from agentspec.replay.engine.calls import stage_key
from agentspec.stages import StageKey

OFF, NGRAM, OURS = "off", "ngram", "ours"
METHODS = (OFF, NGRAM, OURS)
NGRAM_DRAFT = 8
# same settings as `agentspec serve`
DRAFTS = {
    OFF: DraftConfig(mode="off"),
    NGRAM: DraftConfig(mode="chain", max_tokens=NGRAM_DRAFT),
    OURS: DraftConfig(mode="tree", max_tokens=16, rule="learned", min_prob=0.0),
}


def proposer(method: str, history: Sequence[tuple[str, Tokens]]) -> Proposer:
    """Return a new proposer. A forest has learned the history."""
    if method == OFF:
        return NoDrafts()
    if method == NGRAM:
        return DrafterProposer(PromptLookup(NGRAM_DRAFT))
    forest = Forest(ForestConfig())
    for stage, output in history:
        forest.learn(stage_key(stage), output)
    return forest


class DrafterProposer:
    """A method of ``agentspec replay`` as a proposer. It ignores ``min_prob``."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._untold: defaultdict[str, list[Tokens]] = defaultdict(list)

    def start(self, request_id: str, stage: StageKey, prompt_ids: Tokens, **_: object) -> None:
        """Start a request. Its text begins with the prompt."""
        self._drafter.start(request_id, Call(str(stage), request_id, prompt_ids, np.empty(0, np.int32)))

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Return one draft per request."""
        return [self._drafter.step(name, tokens) for name, tokens in updates]

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Keep the tokens until the request finishes."""
        self._untold[request_id].append(token_ids)

    def finish(self, request_id: str, learn: bool = True) -> None:
        """Finish the request."""
        tokens = self._untold.pop(request_id, [])
        self._drafter.finish(request_id, np.concatenate([np.empty(0, np.int32), *tokens]))
