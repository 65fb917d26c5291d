"""MTP heads in the served model's checkpoint: loading them, their computation, and outputs with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.config import OWN_HEADS, DraftConfig
from agentspec.engine.batch import Segment
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import CheckpointError
from agentspec.proposer import NoDrafts
from lab.drafters.checkpoint import load_network
from lab.drafters.model_drafter import ModelDrafter
from lab.drafters.mtp import MtpHead, load_mtp
from lab.tests.drafters.support import GREEDY, MAX_LEN, NUM_SLOTS, SAMPLED, Recording, outputs
from tests.support.checkpoints import make_checkpoint
from tests.support.mtp_heads import ReferenceMtp, add_head

TOLERANCE = 1e-4  # the rotary table is float32
#        0 ─ 1 ─ 3
#        └─ 2 ─ 4 ─ 5
PARENTS = [-1, 0, 0, 1, 2, 4]


@pytest.fixture(scope="module")
def mimo(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_head(checkpoint("qwen2"), tmp_path_factory.mktemp("mimo"))


@pytest.fixture(scope="module")
def served(mimo: Path) -> Transformer:
    return load_model(mimo, dtype=torch.float64)


def ids(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 384, size, dtype=np.int32)


def as_ids(tokens: Any) -> torch.Tensor:
    return torch.from_numpy(tokens).long()


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


def test_texts_and_trees_as_the_reference(mimo: Path, served: Transformer) -> None:
    head, reference = load_mtp(mimo, served), ReferenceMtp(mimo)
    assert head.hidden_layers == (3,)
    tokens, cache = ids(12), head.make_cache(2, 64)
    features = torch.randn(12, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    carried = head.read(features)
    begin = head.forward([Segment(1, 0, tokens[:5])], carried[:5], cache)
    end = head.forward([Segment(1, 5, tokens[5:])], carried[5:], cache)
    expected = reference(as_ids(tokens), features)
    assert difference(torch.cat([begin, end]), expected) < TOLERANCE
    assert difference(head.log_probs(end).double(), reference.log_probs(expected[5:])) < TOLERANCE

    drafted, parents = ids(len(PARENTS), seed=1), np.array(PARENTS, np.int32)
    handed_on, rows = end[-1:], []
    for first, last in ((0, 1), (1, 3), (3, 5), (5, 6)):  # level by level
        above = parents[first:last]
        before = handed_on if first == 0 else torch.cat(rows)[above]
        level = Segment(1, 12 + first, drafted[first:last], parents[:last], num_earlier=first)
        rows.append(head.forward([level], before, cache))
    for path in ([0, 1, 3], [0, 2, 4, 5]):
        text, known = tokens, features
        for node in path:
            known = torch.cat([known, reference(as_ids(text), known)[-1:]])
            text = np.append(text, drafted[node])
        assert difference(torch.cat(rows)[path], reference(as_ids(text), known)[12:]) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(mimo: Path, served: Transformer, dtype: torch.dtype) -> None:
    exact = load_mtp(mimo, served)
    head = load_mtp(mimo, load_model(mimo, dtype=dtype))
    features = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    found = [
        one.log_probs(one.forward([Segment(0, 0, ids(6))], rows, one.make_cache(1, 8)))
        for one, rows in ((exact, features.double()), (head, features.to(dtype)))
    ]
    assert difference(found[1], found[0].float()) < (1e-3 if dtype == torch.float32 else 0.3)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", ["chain", "tree"])
def test_outputs_are_identical(
    mimo: Path, served: Transformer, tokenizer: Tokenizer, mode: str, sampling: Any
) -> None:
    draft = DraftConfig(mode=mode, max_tokens=8, min_prob=0.0)
    plain = outputs(served, tokenizer, NoDrafts(), draft, sampling)
    drafter = Recording(ModelDrafter(load_mtp(mimo, served), NUM_SLOTS, MAX_LEN, width=3, depth=3))
    assert outputs(served, tokenizer, drafter, draft, sampling) == plain
    assert any(map(len, drafter.drafts))


def test_a_sliding_window_of_the_model_is_not_the_head_s(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = add_head(checkpoint("qwen2_window"), tmp_path)
    head = load_mtp(path, load_model(path, dtype=torch.float64))
    features = torch.randn(30, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = head.forward([Segment(0, 0, ids(30))], head.read(features), head.make_cache(1, 32))
    assert difference(found, ReferenceMtp(path)(as_ids(ids(30)), features)) < TOLERANCE


def test_it_is_found_by_its_name(mimo: Path, served: Transformer) -> None:
    assert isinstance(load_network(OWN_HEADS, served, mimo), MtpHead)
    assert isinstance(load_network(mimo, served, "elsewhere"), MtpHead)


@pytest.mark.parametrize("number", [None, 0, "one"])
def test_a_model_without_heads(
    checkpoint: Callable[[str], Path], served: Transformer, tmp_path: Path, number: Any
) -> None:
    path = add_head(checkpoint("qwen2"), tmp_path, num_nextn_predict_layers=number)
    with pytest.raises(CheckpointError, match=f"no MTP heads, its num_nextn_predict_layers is {number!r}"):
        load_mtp(path, served)


def test_a_head_of_another_model(mimo: Path, tmp_path: Path) -> None:
    model = load_model(make_checkpoint(tmp_path, "qwen2", hidden_size=32))
    message = "is for 384 tokens and hidden size 64, the served model has 384 and 32"
    with pytest.raises(CheckpointError, match=message):
        load_mtp(mimo, model)


@pytest.mark.parametrize("name", ["input_proj.weight", "token_layernorm.weight", "mlp.up_proj.weight"])
def test_a_missing_tensor(
    checkpoint: Callable[[str], Path], served: Transformer, tmp_path: Path, name: str
) -> None:
    path = add_head(checkpoint("qwen2"), tmp_path, without=name)
    with pytest.raises(CheckpointError, match=rf"tensor 'model\.mtp_layers\.0\.{name}' is missing"):
        load_mtp(path, served)
