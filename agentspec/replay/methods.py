"""The drafting methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agentspec.config import SHARED_SOURCES, DraftConfig
from agentspec.draft import Source
from agentspec.replay.drafter import Drafter, ForestDrafter, PromptLookup

# a replay has one workflow, so the tenant's tree would duplicate its tree
LEARNED_SOURCES = (Source.SESSION, Source.STAGE, Source.WORKFLOW)


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings of a method.

    Attributes:
        mode: ``"chain"`` or ``"tree"``, for methods that support both.
        max_tokens: maximum number of tokens in one draft.
        alpha: drafts are at most ``alpha * match_length`` long (the paper's MAX_SPEC).
        min_prob: tokens with a smaller estimated probability are not drafted.
    """

    mode: str = "chain"
    max_tokens: int = 32
    alpha: float = 4.0
    min_prob: float = 0.1

    @property
    def draft(self) -> DraftConfig:
        """The same settings for a forest."""
        return DraftConfig(self.mode, self.max_tokens, self.alpha, min_prob=self.min_prob)


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        summary: in one line.
        has_price: it drafts no token that is less probable than ``Rule.min_prob``.
    """

    summary: str
    make: Callable[[Rule], Drafter]
    has_price: bool = False


METHODS: Mapping[str, Method] = {
    "learned": Method(
        "request, session, stage and workflow trees together, tokens by their chance to be accepted",
        lambda rule: ForestDrafter(replace(rule.draft, rule="learned"), LEARNED_SOURCES),
        has_price=True,
    ),
    "forest": Method(
        "request, session, stage, workflow and tenant trees together, as the forest is by default",
        lambda rule: ForestDrafter(rule.draft, SHARED_SOURCES),
        has_price=True,
    ),
    "paper-stage": Method(
        "SuffixDecoding: the request's tree and one per stage",
        lambda rule: ForestDrafter(rule.draft),
        has_price=True,
    ),
    "paper-shared": Method(
        "SuffixDecoding: the request's tree and one of all outputs",
        lambda rule: ForestDrafter(rule.draft, by_stage=False),
        has_price=True,
    ),
    "pld": Method(
        "prompt look-up, n-grams of 2 to 5 tokens, as vLLM's method ngram",
        lambda rule: PromptLookup(rule.max_tokens),
    ),
}
