"""Drafts by a network in the decoding loop: outputs stay, drafts are what the network says of the text."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.draft import Source
from agentspec.engine import scheduler
from agentspec.engine.batch import Segment
from agentspec.engine.model.checkpoint import RandomWeights, model_of_shape
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.passed import PassedRow, PassWatcher
from agentspec.engine.sampling.state import SamplerState
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import DuplicateRequestError
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import NoDrafts, Proposer
from agentspec.tags import Tags
from lab.drafters.draft_model import DraftModel
from lab.drafters.eagle_checkpoint import load_eagle
from lab.drafters.medusa import MedusaHeads
from lab.drafters.model_drafter import DraftNetwork, ModelDrafter
from lab.tests.drafters.reference_head import ReferenceHead
from lab.tests.drafters.support import GREEDY, MAX_LEN, NUM_SLOTS, SAMPLED, Recording, outputs
from tests.support.eagle_heads import head_config, head_tensors, write_head
from tests.support.fakes import STAGE, SteppedEngine


@pytest.fixture(scope="module")
def head_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = head_config()
    return write_head(tmp_path_factory.mktemp("head"), config, head_tensors(config))


def drafter(head_path: Path, model: Transformer, **sizes: int) -> ModelDrafter:
    return ModelDrafter(load_eagle(head_path, model), NUM_SLOTS, MAX_LEN, **sizes)


def random_medusa(model: Transformer) -> MedusaHeads:
    return MedusaHeads(3, 1, RandomWeights(torch.device("cpu"), torch.float64), model)


NETWORKS: dict[str, Callable[[Path, Transformer], DraftNetwork]] = {
    "eagle": load_eagle,
    "medusa": lambda _, model: random_medusa(model),
    "draft model": lambda _, model: DraftModel(
        model_of_shape(replace(model.config, num_layers=1, layer_windows=(None,)), dtype=torch.float64), model
    ),
}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", ["chain", "tree"])
@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_are_identical(
    exact_model: Transformer,
    tokenizer: Tokenizer,
    head_path: Path,
    network: str,
    mode: str,
    sampling: SamplingParams,
) -> None:
    draft = DraftConfig(mode=mode, max_tokens=8, min_prob=0.0)
    plain = outputs(exact_model, tokenizer, NoDrafts(), draft, sampling)
    made = NETWORKS[network](head_path, exact_model)
    proposer = Recording(ModelDrafter(made, NUM_SLOTS, MAX_LEN, width=3, depth=3))
    assert outputs(exact_model, tokenizer, proposer, draft, sampling) == plain
    assert sum(map(len, proposer.drafts)) > 2 * len(proposer.drafts)
    assert {draft.source for draft in proposer.drafts} == {Source.MODEL}
    assert all(draft.is_chain for draft in proposer.drafts) == (mode == "chain")


@pytest.mark.parametrize("num_sequences", [NUM_SLOTS, 1.5], ids=["all fit", "some lose their slots"])
def test_drafts_are_those_of_the_reference(
    exact_model: Transformer,
    tokenizer: Tokenizer,
    head_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_sequences: float,
) -> None:
    """Each chain, from features of the whole text computed anew: none is missed, doubled or misplaced."""
    monkeypatch.setattr(scheduler, "GROWTH", 4)
    monkeypatch.setattr(scheduler, "GROWTH_DIVISOR", 1000)
    config = head_config()
    reference = ReferenceHead(config, head_tensors(config), exact_model.embed(torch.arange(384)).clone())
    head = drafter(head_path, exact_model, depth=4)
    assert head.cache is not None
    proposer = Recording(head)
    whole = KVCache(exact_model.config, 1, MAX_LEN, exact_model.dtype, "cpu")
    limit = int(num_sequences * whole.bytes_of(MAX_LEN))
    outputs(exact_model, tokenizer, proposer, DraftConfig(max_tokens=8, min_prob=0.0), GREEDY, limit)
    begun = [row.key for row in proposer.passed if row.start == 0]
    assert (len(begun) > len(set(begun))) is (num_sequences < NUM_SLOTS)
    assert len(proposer.steps) > 100
    for text, draft in random.Random(1).sample(proposer.steps, 60):
        chain, chances = reference_chain(exact_model, reference, proposer.hidden_layers, text, 4)
        assert draft.token_ids.tolist() == chain
        assert draft.probs.tolist() == pytest.approx(chances, rel=1e-3)


def reference_chain(
    model: Transformer,
    reference: ReferenceHead,
    layers: tuple[int, ...],
    text: list[int],
    size: int,
    first: int = 0,
) -> tuple[list[int], list[float]]:
    """Return the chain that continues a text, by features from a place on, and its chances."""
    known = np.array(text[:-1], np.int32)
    cache = KVCache(model.config, 1, MAX_LEN, model.dtype, "cpu")
    features = model.run([Segment(0, 0, known)], cache, layers).hidden
    assert features is not None
    carried, read = reference.read(features[first:]), torch.tensor(text[first + 1 :])
    chain, chances, chance = [], [], 1.0
    for _ in range(size):
        handed_on = reference.forward(read, carried)[-1:]
        log, token = reference.log_probs(handed_on)[0].max(0)
        chance *= math.exp(float(log))
        chain.append(int(token))
        chances.append(chance)
        carried, read = torch.cat([carried, handed_on]), torch.cat([read, token[None]])
    return chain, chances


def test_the_served_model_as_its_own_draft_model(exact_model: Transformer, tokenizer: Tokenizer) -> None:
    """Every token of every chain is accepted."""
    network = DraftModel(exact_model, exact_model)
    proposer = Recording(ModelDrafter(network, NUM_SLOTS, MAX_LEN, depth=4))
    found = outputs(exact_model, tokenizer, proposer, DraftConfig(max_tokens=100, min_prob=0.0), GREEDY)
    num_tokens, num_outputs = sum(map(len, found)), len(found)
    assert len(proposer.steps) <= num_tokens / 5 + num_outputs


def test_samples_are_drafted_by_the_random_numbers_of_their_request(
    exact_model: Transformer, tokenizer: Tokenizer
) -> None:
    """The served model as its own draft model: its likeliest tokens are half of the sampled ones at most."""
    plain = outputs(exact_model, tokenizer, NoDrafts(), DraftConfig(), SAMPLED)
    network = DraftModel(exact_model, exact_model)
    proposer = Recording(ModelDrafter(network, NUM_SLOTS, MAX_LEN, depth=4))
    draft = DraftConfig(max_tokens=100, min_prob=0.0)
    assert outputs(exact_model, tokenizer, proposer, draft, SAMPLED) == plain
    num_tokens, num_outputs = sum(map(len, plain)), len(plain)
    assert len(proposer.steps) <= num_tokens / 4 + num_outputs


def test_a_head_of_fewer_tokens_drafts_samples(
    exact_model: Transformer, tokenizer: Tokenizer, head_path: Path
) -> None:
    proposer = Recording(drafter(head_path, exact_model, depth=3))
    sampling = replace(SAMPLED, temperature=1.0, top_p=1.0)
    outputs(exact_model, tokenizer, proposer, DraftConfig(max_tokens=8, min_prob=0.0), sampling)
    head = load_eagle(head_path, exact_model)
    known = {*head.token_ids(np.arange(head_config()["draft_vocab_size"])).tolist()}
    drafted = {token for draft in proposer.drafts for token in draft.token_ids.tolist()}
    assert len(drafted) > 20
    assert drafted <= known


def test_prompts_that_continue_what_a_slot_holds(
    exact_model: Transformer, tokenizer: Tokenizer, head_path: Path
) -> None:
    """The first tokens then have no features. A head begins behind them, a draft model reads them."""
    plain, _ = continued(exact_model, tokenizer, NoDrafts())
    config = head_config()
    reference = ReferenceHead(config, head_tensors(config), exact_model.embed(torch.arange(384)).clone())
    for made in (load_eagle(head_path, exact_model), DraftModel(exact_model, exact_model)):
        proposer = Recording(ModelDrafter(made, NUM_SLOTS, MAX_LEN))
        found, first = continued(exact_model, tokenizer, proposer)
        assert found == plain
        assert first >= 80
        steps = [step for step in proposer.steps if step[0][:83] == proposer.texts["b"][:83] and len(step[1])]
        assert len(steps) > 3
        for text, draft in steps:
            if isinstance(made, DraftModel):  # the served model itself: it knows the whole text
                accepted = proposer.texts["b"][len(text) :][: len(draft)]
                assert draft.token_ids.tolist()[: len(accepted)] == accepted
                continue
            chain, _ = reference_chain(exact_model, reference, made.hidden_layers, text, len(draft), first)
            assert draft.token_ids.tolist() == chain


def continued(model: Transformer, tokenizer: Tokenizer, proposer: Proposer) -> tuple[list[list[int]], int]:
    """Return two outputs, and where the second prompt's first pass began."""
    draft = DraftConfig(max_tokens=4, min_prob=0.0)
    engine = SteppedEngine(
        model, tokenizer, proposer, num_slots=1, price=0.0, keeps_prompts=True, draft=draft
    )
    prompt = [random.Random(3).randrange(4, 380) for _ in range(81)]
    engine.submit(GenerationRequest("a", prompt, GREEDY, Tags(STAGE)))
    engine.run()
    num_passes = len(engine.model.passes)
    engine.submit(GenerationRequest("b", [*prompt, 7, 8], GREEDY, Tags(STAGE)))
    engine.run()
    return [engine.output("a"), engine.output("b")], engine.model.passes[num_passes][0].start


def test_a_request_without_all_features_drafts_nothing(exact_model: Transformer, head_path: Path) -> None:
    proposer = drafter(head_path, exact_model)
    assert isinstance(proposer, PassWatcher)
    proposer.start("r", STAGE, np.arange(5, dtype=np.int32))
    [draft] = proposer.step([("r", np.array([7], np.int32))])
    assert len(draft) == 0
    with pytest.raises(DuplicateRequestError, match="'r' is live already"):
        proposer.start("r", STAGE, np.arange(5, dtype=np.int32))
    proposer.finish("r")
    proposer.finish("never started")
    token_ids, state = np.arange(2, dtype=np.int32), SamplerState(SamplingParams())
    proposer.watch([PassedRow("r", 0, 0, token_ids, [0, 1], None, torch.empty(0, 384), state)])
