"""Trees and a model that draft together: outputs stay, and each drafts where it is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from agentspec.config import SHARED_SOURCES, DraftConfig, ForestConfig
from agentspec.draft import Draft, Source
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.passed import PassedRow, PassWatcher
from agentspec.engine.pricing import Pricing
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import DuplicateRequestError, UnknownRequestError
from agentspec.forest import Forest
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import NoDrafts
from agentspec.stages import StageKey
from agentspec.tags import Tags
from lab.drafters.draft_model import DraftModel
from lab.drafters.eagle_checkpoint import load_eagle
from lab.drafters.hybrid import HybridDrafter
from lab.drafters.joint_chance import JointChance
from lab.drafters.model_drafter import DraftTree, ModelDrafter
from lab.drafters.model_use import ModelUse, Situation
from lab.tests.drafters.support import GREEDY, MAX_LEN, NUM_SLOTS, SAMPLED, Recording, chain, ids, outputs
from tests.support.eagle_heads import head_config, head_tensors, write_head
from tests.support.fakes import STAGE, SteppedEngine


@pytest.fixture(scope="module")
def head_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = head_config()
    return write_head(tmp_path_factory.mktemp("head"), config, head_tensors(config))


def trees() -> Forest:
    return Forest(ForestConfig(sources=SHARED_SOURCES))


# ---- in the decoding loop ----


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("threshold", [None, 0.0, 1.0, 1e9])
@pytest.mark.parametrize(("mode", "rule"), [("chain", "paper"), ("tree", "learned")])
def test_outputs_are_identical(
    exact_model: Transformer,
    tokenizer: Tokenizer,
    head_path: Path,
    mode: str,
    rule: Any,
    threshold: float | None,
    sampling: SamplingParams,
) -> None:
    draft = DraftConfig(mode=mode, rule=rule, max_tokens=8, min_prob=0.0)
    plain = outputs(exact_model, tokenizer, NoDrafts(), draft, sampling)
    model = ModelDrafter(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN, width=3, depth=3)
    proposer = Recording(HybridDrafter(trees(), model, threshold=threshold))
    assert outputs(exact_model, tokenizer, proposer, draft, sampling) == plain
    sources = {draft.source for draft in proposer.drafts if len(draft)}
    assert Source.MODEL in sources
    assert (sources == {Source.MODEL}) or threshold != 1e9
    assert (sources != {Source.MODEL}) or threshold not in (None, 0.0)
    assert max(map(len, proposer.drafts)) <= 8
    if mode == "chain":
        assert all(draft.is_chain for draft in proposer.drafts)


def test_a_perfect_model_is_used_and_continued_by_the_trees(
    exact_model: Transformer, tokenizer: Tokenizer
) -> None:
    """The served model drafts for itself, and the trees know the outputs of a first round."""
    draft = DraftConfig(rule="paper", max_tokens=16, min_prob=0.0, alpha=8)
    model = ModelDrafter(DraftModel(exact_model, exact_model), NUM_SLOTS, MAX_LEN, depth=4)
    forest = trees()
    outputs(exact_model, tokenizer, forest, draft, GREEDY)
    proposer = Recording(HybridDrafter(forest, model, clock=lambda: 0.0))
    found = outputs(exact_model, tokenizer, proposer, draft, GREEDY)
    num_tokens, num_outputs = sum(map(len, found)), len(found)
    assert len(proposer.steps) <= num_tokens / 8 + num_outputs  # only the model: five tokens a step


@pytest.mark.parametrize("is_verified", [True, False])
def test_only_verified_drafts_say_what_the_model_gains(
    exact_model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, is_verified: bool
) -> None:
    learned: list[float] = []
    monkeypatch.setattr(Pricing, "are_worth", lambda *_: is_verified)
    model = ModelDrafter(DraftModel(exact_model, exact_model), NUM_SLOTS, MAX_LEN, depth=4)
    hybrid = HybridDrafter(trees(), model, clock=lambda: 0.0)

    def learn(_: ModelUse, situation: Situation, gained: float) -> None:
        if hybrid._requests["r"].num_drafted:  # an empty draft in place of the trees' has its result, too
            learned.append(gained)

    monkeypatch.setattr(ModelUse, "learn", learn)
    draft = DraftConfig(max_tokens=8, min_prob=0.0)
    engine = SteppedEngine(
        exact_model, tokenizer, hybrid, draft=draft, num_slots=NUM_SLOTS, max_model_len=MAX_LEN, price=None
    )
    engine.submit(GenerationRequest("r", [5, 6, 7], GREEDY, Tags(STAGE)))
    engine.run()
    assert any(gained > 0 for gained in learned) is is_verified


def test_a_model_that_is_not_worth_its_reading_reads_nothing(
    exact_model: Transformer, tokenizer: Tokenizer, head_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests have the drafts that they have without the hybrid."""
    draft = DraftConfig(rule="learned", max_tokens=8, min_prob=0.0)
    without = Recording(trees())
    plain = outputs(exact_model, tokenizer, without, draft, GREEDY)
    monkeypatch.setattr(ModelUse, "wants", lambda *_: False)
    read: list[int] = []

    class Reading(ModelDrafter):
        def watch(self, rows: Sequence[PassedRow]) -> None:
            read.extend(len(row.kept) for row in rows)
            super().watch(rows)

    model = Reading(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN)
    proposer = Recording(HybridDrafter(trees(), model))
    assert outputs(exact_model, tokenizer, proposer, draft, GREEDY) == plain
    assert read == []
    tokens = [[draft.token_ids.tolist() for draft in one.drafts] for one in (proposer, without)]
    assert tokens[0] == tokens[1]
    assert any(tokens[0])


class Guessing(ModelDrafter):
    """A model that drafts four tokens, and is sure of them."""

    def watch(self, rows: Sequence[PassedRow]) -> None:
        pass

    def grow(self, updates: Any, trees: Sequence[DraftTree]) -> None:
        for tree in trees:
            for token in (7, 8, 9, 10):
                tree.add(ids(token)[None], np.zeros((1, 1), np.float32))
                if tree.expand() is None:
                    break


def passed(start: int, *tokens: int) -> PassedRow:
    return PassedRow("r", 0, start, ids(*tokens), range(len(tokens)), None, torch.empty(0), cast(Any, None))


@pytest.mark.parametrize(
    ("chance", "following", "gained"),
    [
        (1.0, (7, 8, 9, 10, 5), 4 - 4 * 0.25),  # added tokens cost what the request pays for them
        (1.0, (7, 8, 5), 2 - 4 * 0.25),
        (0.0, (7,), 0.0),  # all tokens are below the price: the model's time was in vain
        (0.0, (7, 8), 0.0),  # after two passes
    ],
)
def test_what_the_model_gains_is_learned(
    exact_model: Transformer,
    head_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chance: float,
    following: tuple[int, ...],
    gained: float,
) -> None:
    learned: list[float] = []
    monkeypatch.setattr(ModelUse, "learn", lambda _, situation, gained: learned.append(gained))
    monkeypatch.setattr(JointChance, "__call__", lambda *_: chance)
    model = Guessing(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN)
    hybrid = HybridDrafter(trees(), model, clock=lambda: 0.0)
    hybrid.start("r", STAGE, ids(1, 2), draft=DraftConfig(max_tokens=4, min_prob=0.25))
    hybrid.watch([passed(0, 1, 2)])
    [draft] = hybrid.step([("r", ids(3))])
    assert len(draft) == (4 if chance else 0)
    hybrid.watch([passed(2, 3, *draft.token_ids.tolist())])
    hybrid.step([("r", ids(*following))])
    assert learned == [pytest.approx(gained)]


@pytest.mark.parametrize("threshold", [None, 1e9])
def test_before_the_first_token_only_the_trees_draft(
    exact_model: Transformer, tokenizer: Tokenizer, head_path: Path, threshold: float | None
) -> None:
    """The model has not seen the prompt then."""
    asked: list[list[int]] = []

    class Asked(ModelDrafter):
        def grow(self, updates: Any, trees: Sequence[DraftTree]) -> None:
            asked.append([len(tokens) for _, tokens in updates])
            super().grow(updates, trees)

    forest = trees()
    draft = DraftConfig(rule="learned", max_tokens=8, min_prob=0.0)
    outputs(exact_model, tokenizer, forest, draft, GREEDY)
    model = Asked(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN)
    hybrid = HybridDrafter(forest, model, threshold=threshold)
    hybrid.start("r", STAGE, ids(1, 2), draft=draft)
    [first] = hybrid.step([("r", ids())])
    assert first.source is Source.STAGE
    assert asked == []


def test_requests_are_admitted_by_all_or_none(exact_model: Transformer, head_path: Path) -> None:
    model = ModelDrafter(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN)
    hybrid = HybridDrafter(trees(), model)
    assert isinstance(hybrid, PassWatcher)
    assert hybrid.hidden_layers == model.hidden_layers
    hybrid.start("r", STAGE, ids(1, 2))
    with pytest.raises(DuplicateRequestError):
        hybrid.start("r", STAGE, ids(1, 2))
    hybrid.finish("r")
    hybrid.start("r", STAGE, ids(1, 2))
    assert [len(draft) for draft in hybrid.step([("r", ids(3))])] == [0]  # nothing is known yet


@pytest.mark.parametrize(
    ("threshold", "source"),
    [(0.0, Source.STAGE), (1.7, Source.STAGE), (1.8, Source.MODEL), (3.0, Source.MODEL)],
)
def test_a_threshold_chooses_by_the_score_of_the_trees(
    exact_model: Transformer, threshold: float, source: Source
) -> None:
    class Scored(Forest):
        def step(self, *_: Any) -> list[Draft]:
            return [chain((7, 8), (0.9, 0.9))]

    model = ModelDrafter(DraftModel(exact_model, exact_model), NUM_SLOTS, MAX_LEN)
    hybrid = HybridDrafter(Scored(ForestConfig()), model, threshold=threshold)
    hybrid.start("r", STAGE, ids(5, 6), draft=DraftConfig(min_prob=0.0))
    hybrid.watch([passed(0, 5, 6)])
    [draft] = hybrid.step([("r", ids(7))])
    assert draft.source is source


# ---- when the model drafts ----

PLAN, CHAT = StageKey.parse("plan"), StageKey.parse("chat")


LOW, HIGH = 0.5, 6.0  # tokens that the trees expect
NUM_OUTCOMES = 100  # a mean of fewer counts as more


def taught(gains: dict[StageKey, int], pass_s: float = 0.002) -> ModelUse:
    """Return what knows these gains at 1 ms per output token, where the trees expect little."""
    use = ModelUse()
    use.time_step(0.01, 10)
    use.time_model(pass_s, 1)
    for stage, gained in gains.items():
        for _ in range(NUM_OUTCOMES):
            use.learn(use.situation(stage, LOW), gained)
    return use


def choose(use: ModelUse, *met: tuple[StageKey, float]) -> list[bool]:
    return use.choose([use.situation(stage, expected) for stage, expected in met])


def test_the_model_drafts_where_it_gains_more_than_it_costs() -> None:
    use = taught({PLAN: 3, CHAT: 1})
    assert use.price(1) == pytest.approx(2)
    assert choose(use, (PLAN, LOW)) == [True]
    assert choose(use, (CHAT, LOW)) == [False]
    assert choose(use, (CHAT, HIGH)) == [True]  # nothing is known of that
    use.time_model(0.006, 3)
    assert choose(use, (CHAT, LOW), (PLAN, LOW), (CHAT, LOW)) == [False, True, False]
    assert choose(use) == []


def test_requests_share_the_cost_of_a_pass() -> None:
    use = taught({CHAT: 1})
    use.time_model(0.003, 8)
    assert choose(use, (CHAT, LOW)) == [False]
    assert choose(use, *[(CHAT, LOW)] * 8) == [True] * 8


def test_now_and_then_the_model_drafts_where_it_was_not_worth_it() -> None:
    use = taught({CHAT: 0})
    situation = use.situation(CHAT, LOW)
    chosen = [use.choose([situation] * 2) for _ in range(640)]
    assert {tuple(one) for one in chosen} == {(True, True), (False, False)}
    assert 8 <= chosen.count([True, True]) <= 40
    for _ in range(60):
        use.learn(situation, 9)  # the model is better now
    assert use.choose([situation]) == [True]


# ---- what goes wrong ----


class Failing(ModelDrafter):
    """A model that can't draft: ``fails`` names the method that raises."""

    fails = ""

    def start(self, *arguments: Any, **options: Any) -> None:
        super().start(*arguments, **options)
        if self.fails == "start":
            raise MemoryError

    def watch(self, rows: Sequence[PassedRow]) -> None:
        if self.fails == "watch":
            raise RuntimeError("no memory on the device")
        super().watch(rows)

    def grow(self, updates: Any, trees: Sequence[DraftTree]) -> None:
        if self.fails == "grow":
            raise RuntimeError("no memory on the device")
        super().grow(updates, trees)


@pytest.mark.parametrize("fails", ["watch", "grow"])
def test_a_model_that_fails_leaves_the_trees_to_draft(
    exact_model: Transformer, tokenizer: Tokenizer, head_path: Path, fails: str
) -> None:
    draft = DraftConfig(max_tokens=8, min_prob=0.0)
    model = Failing(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN)
    model.fails = fails
    forest = trees()
    proposer = Recording(HybridDrafter(forest, model))
    plain = outputs(exact_model, tokenizer, NoDrafts(), draft, GREEDY)
    assert outputs(exact_model, tokenizer, proposer, draft, GREEDY) == plain
    assert sum(map(len, proposer.drafts)) > 0
    assert forest.stats(STAGE).num_tokens == sum(map(len, plain))  # all were learned


def test_a_model_that_fails_halfway_leaves_a_valid_draft(exact_model: Transformer, head_path: Path) -> None:
    """It doubted the first token, and failed before it said anything of the second one."""

    class Doubting(ModelDrafter):
        def watch(self, rows: Sequence[PassedRow]) -> None:
            pass

        def grow(self, updates: Any, trees: Sequence[DraftTree]) -> None:
            trees[0].add(ids(7)[None], np.full((1, 1), -6.0, np.float32))
            raise RuntimeError("no memory on the device")

    class Sure(Forest):
        def step(self, *_: Any) -> list[Draft]:
            return [chain((7, 8), (0.9, 0.9))]

    model = Doubting(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN)
    hybrid = HybridDrafter(Sure(ForestConfig()), model)
    hybrid.start("r", STAGE, ids(1, 2), draft=DraftConfig(min_prob=0.0))
    hybrid.watch([passed(0, 1, 2)])
    [draft] = hybrid.step([("r", ids(3))])
    assert draft.token_ids.tolist() == [7, 8]
    assert draft.parents.tolist() == [-1, 0]


def test_a_failure_of_the_trees_is_none_of_the_model(
    exact_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, as those in other calls are, and the model drafts on."""
    model = ModelDrafter(DraftModel(exact_model, exact_model), NUM_SLOTS, MAX_LEN)
    forest = trees()
    hybrid = HybridDrafter(forest, model)
    monkeypatch.setattr(JointChance, "__call__", lambda _, said: max(said.model, said.trees))
    hybrid.start("r", STAGE, ids(5, 6), draft=DraftConfig(min_prob=0.0))
    hybrid.watch([passed(0, 5, 6)])
    with monkeypatch.context() as broken:
        broken.setattr(forest, "draft_after", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            hybrid.step([("r", ids(7))])
    hybrid.watch([passed(2, 7)])
    [draft] = hybrid.step([("r", ids(8))])
    assert draft.source is Source.MODEL


def test_a_request_that_the_model_can_not_take_is_admitted_nowhere(
    exact_model: Transformer, head_path: Path
) -> None:
    model, forest = Failing(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN), trees()
    model.fails = "start"
    hybrid = HybridDrafter(forest, model)
    with pytest.raises(MemoryError):
        hybrid.start("r", STAGE, ids(1, 2))
    assert forest.stats().num_requests == 0
    model.fails = ""
    hybrid.start("r", STAGE, ids(1, 2))


def test_a_step_of_an_unknown_request_changes_nothing(exact_model: Transformer, head_path: Path) -> None:
    hybrid = HybridDrafter(trees(), ModelDrafter(load_eagle(head_path, exact_model), NUM_SLOTS, MAX_LEN))
    hybrid.start("r", STAGE, ids(1, 2))
    with pytest.raises(UnknownRequestError):
        hybrid.step([("r", ids(3)), ("x", ids(3))])
    assert [len(draft) for draft in hybrid.step([("r", ids(3))])] == [0]
