"""The drafting methods that are compared, by name: those of ``agentspec replay``, and others."""

from __future__ import annotations

from collections.abc import Mapping

from agentspec.replay import methods
from agentspec.replay.drafter import Drafter, ForestDrafter, PromptLookup
from agentspec.replay.methods import Method, Rule
from lab.replay.anpd import AdaptiveNgrams
from lab.replay.indexes import Datastore, StageTrees
from lab.replay.recycling import TokenRecycling
from lab.replay.sam import SuffixAutomata


def _arctic(rule: Rule) -> Drafter:
    from lab.replay.arctic import ArcticDrafter

    return ArcticDrafter(rule.mode == "tree", rule.max_tokens, rule.alpha, rule.min_prob)


METHODS: Mapping[str, Method] = {
    **methods.METHODS,
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
