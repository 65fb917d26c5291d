"""EAGLE-3 heads in the published format: loading them, and their computation against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.engine.batch import Segment
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import CheckpointError
from agentspec.proposer import NoDrafts
from lab.drafters.eagle import EagleHead
from lab.drafters.eagle_checkpoint import load_eagle
from lab.drafters.model_drafter import ModelDrafter
from lab.tests.drafters.reference_head import ReferenceHead
from lab.tests.drafters.support import GREEDY, MAX_LEN, NUM_SLOTS, Recording, outputs
from tests.support.eagle_heads import head_config, head_tensors, write_head

TOLERANCE = 1e-4  # the rotary table is float32
NUM_ROWS = 12
#        0 ─ 1 ─ 3
#        └─ 2 ─ 4 ─ 5
PARENTS = [-1, 0, 0, 1, 2, 4]

Make = Callable[..., tuple[EagleHead, ReferenceHead]]


@pytest.fixture
def make(exact_model: Transformer, tmp_path: Path) -> Make:
    def make(*, as_bin: bool = False, rename: Callable[[str], str] = str, **fields: Any) -> Any:
        config = head_config(**fields)
        tensors = head_tensors(config)
        named = {rename(name): one for name, one in tensors.items()}
        write_head(tmp_path, config, named, as_bin=as_bin)
        reference = ReferenceHead(config, tensors, exact_model.embed(torch.arange(384)).clone())
        return load_eagle(tmp_path, exact_model), reference

    return make


def features(num_rows: int = NUM_ROWS) -> torch.Tensor:
    return torch.randn(num_rows, 192, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def ids(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 384, size, dtype=np.int32)


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


def whole(head: EagleHead, log_probs: torch.Tensor) -> torch.Tensor:
    """Return log chances over the served model's vocabulary."""
    places = np.arange(log_probs.shape[1])
    spread = torch.full((len(log_probs), 384), -torch.inf)
    return spread.index_copy(1, torch.from_numpy(head.token_ids(places).astype(np.int64)), log_probs)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norm_before_residual": True},
        {"head_dim": 24},  # as Qwen3's, apart from hidden_size / num_attention_heads
        {"draft_vocab_size": 384},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"norm_before_fc": True, "fc_norm": True, "norm_output": True},
    ],
    ids=["llama", "normed residual", "head_dim", "whole vocabulary", "norm", "norms", "all norms"],
)
def test_texts_and_trees_as_the_reference(make: Make, fields: dict[str, Any]) -> None:
    head, reference = make(**fields)
    cache = head.make_cache(2, 64)
    tokens = ids(NUM_ROWS)
    known = head.read(features())
    assert difference(known, reference.read(features())) < TOLERANCE

    begin = head.forward([Segment(1, 0, tokens[:5])], known[:5], cache)
    end = head.forward([Segment(1, 5, tokens[5:])], known[5:], cache)
    expected = reference.forward(torch.from_numpy(tokens).long(), reference.read(features()))
    assert difference(torch.cat([begin, end]), expected) < TOLERANCE
    ours, theirs = whole(head, head.log_probs(end)), reference.log_probs(expected[5:])
    assert torch.equal(ours.isinf(), theirs.isinf())
    assert difference(ours[~ours.isinf()], theirs[~theirs.isinf()]) < TOLERANCE

    drafted = ids(len(PARENTS), seed=1)
    parents = np.array(PARENTS, np.int32)
    handed_on: list[torch.Tensor] = []
    for level in ([0], [1, 2], [3, 4], [5]):  # as a drafter computes a tree
        num_earlier = level[0]
        carried = torch.stack([end[-1] if parents[n] < 0 else handed_on[parents[n]] for n in level])
        segment = Segment(
            1, NUM_ROWS + num_earlier, drafted[level], parents[: level[-1] + 1], num_earlier=num_earlier
        )
        handed_on += head.forward([segment], carried, cache)
    for node in range(len(PARENTS)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        text, carried = torch.from_numpy(tokens).long(), reference.read(features())
        for one in path:
            carried = torch.cat([carried, reference.forward(text, carried)[-1:]])
            text = torch.cat([text, torch.tensor([drafted[one]])])
        assert difference(handed_on[node], reference.forward(text, carried)[-1]) < TOLERANCE


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"model.{name}",
        lambda name: name.replace("midlayer.", "layers.0."),
        lambda name: "model." + name.replace("midlayer.", "layers.0."),
    ],
    ids=["model.", "layers.0.", "both"],
)
@pytest.mark.parametrize("as_bin", [False, True], ids=["safetensors", "bin"])
def test_all_published_names_and_files(make: Make, rename: Callable[[str], str], as_bin: bool) -> None:
    head, reference = make(as_bin=as_bin, rename=rename)
    carried = head.forward([Segment(0, 0, ids(3))], head.read(features(3)), head.make_cache(1, 8))
    expected = reference.forward(torch.from_numpy(ids(3)).long(), reference.read(features(3)))
    assert difference(carried, expected) < TOLERANCE


def test_a_head_of_another_width_with_its_own_embeddings(exact_model: Transformer, tmp_path: Path) -> None:
    config = head_config(hidden_size=32, target_hidden_size=64)
    tensors = head_tensors(config)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is missing"):
        load_eagle(write_head(tmp_path, config, tensors), exact_model)
    embedding = torch.randn(384, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    write_head(tmp_path, config, {**tensors, "embed_tokens.weight": embedding})
    head, reference = load_eagle(tmp_path, exact_model), ReferenceHead(config, tensors, embedding)
    carried = head.forward([Segment(0, 0, ids(3))], head.read(features(3)), head.make_cache(1, 8))
    expected = reference.forward(torch.from_numpy(ids(3)).long(), reference.read(features(3)))
    assert difference(carried, expected) < TOLERANCE


def test_for_qwen3(checkpoint: Callable[[str], Path], tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = load_model(checkpoint("qwen3"), dtype=torch.float64)
    config = head_config(head_dim=24, eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 1, 2]})
    tensors = head_tensors(config)
    head = load_eagle(write_head(tmp_path, config, tensors), model)
    assert head.hidden_layers == (1, 2, 3)

    slots = [Segment(0, 0, ids(NUM_ROWS))]
    cache = KVCache(model.config, 1, 64, model.dtype, "cpu")
    hidden = model.run(slots, cache, head.hidden_layers).hidden
    assert hidden is not None
    reference = ReferenceHead(config, tensors, model.embed(torch.arange(384)).clone())
    ours = head.forward(slots, head.read(hidden), head.make_cache(1, 64))
    theirs = reference.forward(torch.from_numpy(ids(NUM_ROWS)).long(), reference.read(hidden))
    assert difference(ours, theirs) < TOLERANCE
    chances, expected = whole(head, head.log_probs(ours)), reference.log_probs(theirs)
    assert torch.equal(chances.isinf(), expected.isinf())
    assert difference(chances[~chances.isinf()], expected[~expected.isinf()]) < TOLERANCE

    draft = DraftConfig(mode="tree", max_tokens=8, min_prob=0.0)
    proposer = Recording(ModelDrafter(head, NUM_SLOTS, MAX_LEN, width=3, depth=3))
    plain = outputs(model, tokenizer, NoDrafts(), draft, GREEDY)
    assert outputs(model, tokenizer, proposer, draft, GREEDY) == plain
    assert sum(map(len, proposer.drafts)) > 0
