"""The compared drafting methods, each as the engine's proposer."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.config import DraftConfig, ForestConfig
from agentspec.forest import Forest, Tokens
from agentspec.proposer import NoDrafts, Proposer
from agentspec.replay.drafter import PromptLookup
from lab.engine.calls import stage_key
from lab.replay.live import LiveDrafter

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
        return LiveDrafter(PromptLookup(NGRAM_DRAFT))
    forest = Forest(ForestConfig(), learns_later=True)
    for stage, output in history:
        forest.learn(stage_key(stage), output)
    return forest
