"""The compared methods, each as the embedded engine's proposer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentspec.config import SHARED_SOURCES, DraftConfig, ForestConfig
from agentspec.draft import Source
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.transformer import Transformer
from agentspec.forest import Forest
from agentspec.proposer import NoDrafts, Proposer
from agentspec.replay.drafter import PromptLookup
from lab.drafters.draft_model import DraftModel
from lab.drafters.eagle_checkpoint import load_eagle
from lab.drafters.hybrid import HybridDrafter
from lab.drafters.lookahead import Lookahead
from lab.drafters.medusa import load_medusa
from lab.drafters.model_drafter import DraftNetwork, ModelDrafter
from lab.drafters.mtp import load_mtp
from lab.drafters.token_recycling import TokenRecycler
from lab.replay.anpd import AdaptiveNgrams
from lab.replay.indexes import Datastore
from lab.replay.live import LiveDrafter
from lab.replay.sam import SuffixAutomata

OFF = "off"
MOST_DRAFT = 16
PAPER_THRESHOLD = 2.0  # expected accepted tokens, as of the model's drafts
LIKELY = 0.1  # the paper's least chance of a draft token


@dataclass(frozen=True, slots=True)
class Target:
    """The served model, and the places that its drafts need.

    Attributes:
        heads: folder with trained heads, one folder each.
        num_slots, max_len: of its cache.
        clock: seconds of the method's own steps.
    """

    model: Transformer
    heads: Path | None
    num_slots: int
    max_len: int
    clock: Callable[[], float] = time.thread_time


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        make: returns a new proposer.
        draft: settings of each request.
        head: its folder under the heads; empty = it has none.
    """

    make: Callable[[Target], Proposer]
    draft: DraftConfig
    head: str = ""

    def can_run(self, heads: Path | None) -> bool:
        """Return True if its head is there."""
        return not self.head or (heads is not None and (heads / self.head).is_dir())


_CHAIN = DraftConfig(mode="chain", max_tokens=MOST_DRAFT, min_prob=LIKELY)
_TREE = DraftConfig(mode="tree", max_tokens=MOST_DRAFT, min_prob=LIKELY)
_LEARNED = DraftConfig(mode="tree", max_tokens=MOST_DRAFT, min_prob=LIKELY, rule="learned")
_LOOKAHEAD = DraftConfig(mode="tree", max_tokens=30)
_DATASTORE = DraftConfig(mode="tree", max_tokens=MOST_DRAFT)


def _forest(*sources: Source) -> Callable[[Target], Proposer]:
    return lambda _: Forest(ForestConfig(sources=sources), learns_later=True)


def _network(load: Callable[[Path, Transformer], DraftNetwork], head: str) -> Callable[[Target], Proposer]:
    def make(target: Target) -> Proposer:
        assert target.heads is not None
        network = load(target.heads / head, target.model)
        return ModelDrafter(network, target.num_slots, target.max_len)

    return make


def _hybrid(
    load: Callable[[Path, Transformer], DraftNetwork], head: str, threshold: float | None = None
) -> Callable[[Target], Proposer]:
    make_model, make_trees = _network(load, head), _forest(*SHARED_SOURCES)

    def make(target: Target) -> Proposer:
        trees, model = make_trees(target), make_model(target)
        assert isinstance(trees, Forest)
        assert isinstance(model, ModelDrafter)
        return HybridDrafter(trees, model, threshold=threshold, clock=target.clock)

    return make


def _draft_model(path: Path, target: Transformer) -> DraftModel:
    return DraftModel(load_model(path), target)


METHODS: Mapping[str, Method] = {
    OFF: Method(lambda _: NoDrafts(), DraftConfig(mode="off")),
    "learned": Method(_forest(*SHARED_SOURCES), _LEARNED),
    "paper-stage": Method(_forest(Source.STAGE), _CHAIN),
    "paper-stage tree": Method(_forest(Source.STAGE), _TREE),
    "pld": Method(lambda _: LiveDrafter(PromptLookup(MOST_DRAFT)), _CHAIN),
    "llma": Method(lambda _: LiveDrafter(PromptLookup(MOST_DRAFT, 2, 2, only_prompt=True)), _CHAIN),
    "anpd": Method(lambda _: LiveDrafter(AdaptiveNgrams(MOST_DRAFT)), _CHAIN),
    "rest": Method(lambda _: LiveDrafter(Datastore(MOST_DRAFT)), _DATASTORE),
    "sam": Method(lambda _: LiveDrafter(SuffixAutomata(MOST_DRAFT, least=1, bias=0)), _CHAIN),
    "recycling": Method(lambda t: TokenRecycler(t.model.config.vocab_size, MOST_DRAFT), _TREE),
    "lookahead": Method(lambda _: Lookahead(window=5, ngram=4, guesses=5), _LOOKAHEAD),
    "eagle-3": Method(_network(load_eagle, "eagle"), _TREE, "eagle"),
    "eagle-3 chain": Method(_network(load_eagle, "eagle"), _CHAIN, "eagle"),
    "medusa": Method(_network(load_medusa, "medusa"), _TREE, "medusa"),
    "mtp": Method(_network(load_mtp, "mtp"), _TREE, "mtp"),
    "hybrid": Method(_hybrid(load_eagle, "eagle"), _LEARNED, "eagle"),
    "hybrid, medusa": Method(_hybrid(load_medusa, "medusa"), _LEARNED, "medusa"),
    "hybrid, mtp": Method(_hybrid(load_mtp, "mtp"), _LEARNED, "mtp"),
    "hybrid, paper": Method(_hybrid(load_eagle, "eagle", PAPER_THRESHOLD), _LEARNED, "eagle"),
    "hybrid, draft model": Method(_hybrid(_draft_model, "draft_model"), _LEARNED, "draft_model"),
    "draft model": Method(_network(_draft_model, "draft_model"), _CHAIN, "draft_model"),
    "draft model tree": Method(_network(_draft_model, "draft_model"), _TREE, "draft_model"),
}
