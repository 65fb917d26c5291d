"""The drafting methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agentspec.config import SHARED_SOURCES, DraftConfig
from agentspec.draft import Source
from agentspec.replay.drafters.anpd import AdaptiveNgrams
from agentspec.replay.drafters.drafter import Datastore, Drafter, ForestDrafter, PromptLookup
from agentspec.replay.drafters.recycling import TokenRecycling
from agentspec.replay.drafters.sam import SuffixAutomata
from agentspec.replay.drafters.stage_trees import StageTrees

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


def _arctic(rule: Rule) -> Drafter:
    from agentspec.replay.drafters.arctic import ArcticDrafter

    return ArcticDrafter(rule.mode == "tree", rule.max_tokens, rule.alpha, rule.min_prob)


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
    "paper-request": Method(
        "SuffixDecoding: only the request's tree",
        lambda rule: ForestDrafter(rule.draft, ()),
        has_price=True,
    ),
    "paper-global": Method(
        "SuffixDecoding: only one tree per stage, without the request's",
        lambda rule: StageTrees(rule.draft),
        has_price=True,
    ),
    "pld": Method(
        "prompt look-up, n-grams of 2 to 5 tokens, as vLLM's method ngram",
        lambda rule: PromptLookup(rule.max_tokens),
    ),
    "llma": Method(
        "copies from the prompt only, after 2 tokens that match",
        lambda rule: PromptLookup(rule.max_tokens, 2, 2, only_prompt=True),
    ),
    "anpd": Method(
        "ANPD: the most frequent continuation by the n-grams of the request's text, 5 tokens down to 2",
        lambda rule: AdaptiveNgrams(rule.max_tokens),
    ),
    "rest": Method(
        "a datastore of all outputs, trees of what followed the longest match of up to 16 tokens",
        lambda rule: Datastore(rule.max_tokens),
    ),
    "recycling": Method(
        "Token Recycling, with the tokens that followed each one last in place of the model's top 8",
        lambda rule: TokenRecycling(rule.max_tokens, is_tree=rule.mode == "tree"),
    ),
    "sam": Method(
        "SAM-Decoding alone: what last followed the longest match in the text or in all outputs",
        lambda rule: SuffixAutomata(rule.max_tokens, least=1, bias=0),
    ),
    "arctic": Method(
        "arctic-inference's suffix cache, what vLLM's method suffix uses, if it is installed",
        _arctic,
        has_price=True,
    ),
}
