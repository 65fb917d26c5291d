"""The forward pass compared with transformers, on random checkpoints of every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import visibility
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.errors import EngineError
from tests.support.checkpoints import FAMILIES, VOCAB_SIZE, load_reference

TOLERANCE = 1e-4
#            0 ─ 1 ─ 2 ─ 3
#                │   └─ 5 ─ 6
#                └─ 4 ─ 7       8 (a second root)
TREE_PARENTS = np.array([-1, 0, 1, 2, 1, 2, 5, 4, -1], np.int32)


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, checkpoint: Callable[[str], Path]) -> Transformer:
    return load_model(checkpoint(family))


@pytest.fixture(scope="module")
def reference(family: str, checkpoint: Callable[[str], Path]) -> Any:
    return load_reference(checkpoint(family))


def ids(size: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, size, dtype=np.int32)


def new_cache(model: Transformer, num_slots: int = 1, max_len: int = 128) -> KVCache:
    return KVCache(model.config, num_slots, max_len, model.dtype, model.device)


def expected(reference: Any, token_ids: NDArray[np.int32]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = reference(torch.from_numpy(token_ids[None].astype(np.int64))).logits[0]
    return logits


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


def paths(parents: Sequence[int]) -> list[list[int]]:
    """Return every root-to-leaf path of a tree, as indices."""
    leaves = set(range(len(parents))) - set(parents)
    found = []
    for leaf in sorted(leaves):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        found.append(path)
    return found


def test_whole_prompt(model: Transformer, reference: Any) -> None:
    prompt = ids(70)
    ours = model.forward([Segment(0, 0, prompt)], new_cache(model))
    assert ours.dtype == torch.float32
    theirs = expected(reference, prompt)
    assert float(theirs.abs().max()) > 1  # large enough to make the tolerance meaningful
    assert difference(ours, theirs) < TOLERANCE


def test_prompt_in_chunks(model: Transformer, reference: Any) -> None:
    prompt, cache = ids(70), new_cache(model)
    bounds = [0, 1, 2, 19, 20, 52, 70]
    pieces = [model.forward([Segment(0, start, prompt[start:end])], cache) for start, end in pairwise(bounds)]
    assert difference(torch.cat(pieces), expected(reference, prompt)) < TOLERANCE


@pytest.mark.parametrize("slots", [(0, 1), (3, 0, 1), (2, 0, 3, 1, 5), (9, 0, 4, 7, 2), (5, 4, 3, 2, 1, 0)])
def test_batch_of_slots(model: Transformer, reference: Any, slots: tuple[int, ...]) -> None:
    """Run chunks of different lengths at different depths, some of them decode steps, in any slot order."""
    cache = new_cache(model, num_slots=10)
    prompts = [ids(24 + 9 * i, seed=i) for i in range(len(slots))]
    starts = [3 * i for i in range(len(slots))]
    ends = [len(prompt) - 8 for prompt in prompts]
    first = [
        Segment(slot, 0, prompt[:start])
        for slot, prompt, start in zip(slots, prompts, starts, strict=True)
        if start
    ]
    model.forward(first, cache)
    middle = [
        Segment(slot, start, prompt[start:end], None, min(i, end - start))
        for i, (slot, prompt, start, end) in enumerate(zip(slots, prompts, starts, ends, strict=True))
    ]
    ours = model.forward(middle, cache)
    theirs = [
        expected(reference, prompt[:end])[start + segment.logits_from :]
        for prompt, start, end, segment in zip(prompts, starts, ends, middle, strict=True)
    ]
    assert difference(ours, torch.cat(theirs)) < TOLERANCE
    last = [Segment(slot, e, p[e : e + 1]) for slot, p, e in zip(slots, prompts, ends, strict=True)]
    theirs = [expected(reference, p[: e + 1])[-1:] for p, e in zip(prompts, ends, strict=True)]
    assert difference(model.forward(last, cache), torch.cat(theirs)) < TOLERANCE


def test_tree_rows_equal_causal_runs_of_their_paths(model: Transformer, reference: Any) -> None:
    prompt, tree = ids(30), ids(len(TREE_PARENTS), seed=5)
    cache = new_cache(model)
    model.forward([Segment(0, 0, prompt)], cache)
    logits = model.forward([Segment(0, 30, tree, TREE_PARENTS)], cache)
    for path in paths(TREE_PARENTS.tolist()):
        whole = expected(reference, np.concatenate([prompt, tree[path]]))
        assert difference(logits[path], whole[30:]) < TOLERANCE


def test_trees_and_chains_in_one_batch(model: Transformer, reference: Any) -> None:
    prompts = [ids(20 + 5 * i, seed=i) for i in range(4)]
    tree = ids(len(TREE_PARENTS), seed=5)
    cache = new_cache(model, num_slots=4)
    model.forward([Segment(i, 0, prompt) for i, prompt in enumerate(prompts)], cache)
    shapes = [None, TREE_PARENTS, np.arange(-1, 5, dtype=np.int32), TREE_PARENTS]
    segments = [
        Segment(i, len(prompt), tree if shape is None else tree[: len(shape)], shape)
        for i, (prompt, shape) in enumerate(zip(prompts, shapes, strict=True))
    ]
    pieces = model.forward(segments, cache).split([len(segment) for segment in segments])
    for prompt, segment, logits in zip(prompts, segments, pieces, strict=True):
        chain = np.arange(-1, len(segment) - 1)
        for path in paths((chain if segment.parents is None else segment.parents).tolist()):
            whole = expected(reference, np.concatenate([prompt, segment.token_ids[path]]))
            assert difference(logits[path], whole[len(prompt) :]) < TOLERANCE


def test_decoding_goes_on_after_the_accepted_path(model: Transformer, reference: Any) -> None:
    prompt, tree, more = ids(30), ids(len(TREE_PARENTS), seed=5), ids(6, seed=6)
    cache = new_cache(model)
    model.forward([Segment(0, 0, prompt)], cache)
    model.forward([Segment(0, 30, tree, TREE_PARENTS)], cache)
    accepted = [0, 1, 4, 7]
    cache.keep(0, 30, accepted)
    logits = model.forward([Segment(0, 34, more)], cache)
    whole = expected(reference, np.concatenate([prompt, tree[accepted], more]))
    assert difference(logits, whole[34:]) < TOLERANCE


def test_logits_only_where_wanted(llama_checkpoint: Path) -> None:
    model = load_model(llama_checkpoint)
    cache = new_cache(model, num_slots=3)
    segments = [Segment(0, 0, ids(9), None, 9), Segment(1, 0, ids(5), None, 4), Segment(2, 0, ids(3))]
    assert model.forward(segments, cache).shape == (4, VOCAB_SIZE)
    assert model.forward([Segment(0, 9, ids(2), None, 2)], cache).shape == (0, VOCAB_SIZE)


def test_positions_beyond_the_first_rotary_rows(tmp_path: Path, llama_checkpoint: Path) -> None:
    model, reference = load_model(llama_checkpoint), load_reference(llama_checkpoint)
    model._rotary._table = model._rotary._table[:16]
    prompt = ids(90)
    ours = model.forward([Segment(0, 0, prompt)], new_cache(model))
    assert difference(ours, expected(reference, prompt)) < TOLERANCE


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([Segment(0, 120, ids(9))], "9 tokens from 120"),
        ([Segment(0, 0, ids(0))], "0 tokens from 0"),
        ([Segment(0, -1, ids(1))], "1 tokens from -1"),
        ([Segment(2, 0, ids(1))], "no KV slot 2"),
        ([Segment(1, 0, ids(1)), Segment(1, 1, ids(1))], "slot occurs twice"),
    ],
)
def test_segments_that_do_not_fit_change_nothing(
    llama_checkpoint: Path, segments: list[Segment], message: str
) -> None:
    model = load_model(llama_checkpoint)
    cache = new_cache(model, num_slots=2)
    with pytest.raises(EngineError, match=message):
        model.forward(segments, cache)
    assert not cache.entries.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family_name", ["llama", "qwen3"])
def test_half_precision_is_near(
    checkpoint: Callable[[str], Path], family_name: str, dtype: torch.dtype
) -> None:
    path = checkpoint(family_name)
    model, prompt = load_model(path, dtype=dtype), ids(40)
    ours = model.forward([Segment(0, 0, prompt)], new_cache(model))
    theirs = expected(load_reference(path), prompt)
    assert ours.dtype == torch.float32
    assert difference(ours, theirs) < 0.05 * float(theirs.abs().max())


def test_double_precision_is_nearer_still(llama_checkpoint: Path) -> None:
    model, prompt = load_model(llama_checkpoint, dtype=torch.float64), ids(40)
    ours = model.forward([Segment(0, 0, prompt)], new_cache(model))
    theirs = expected(load_reference(llama_checkpoint), prompt)
    assert difference(ours, theirs) < TOLERANCE / 4


def test_visibility_of_a_windowed_tree() -> None:
    """Compare with the definition, entry by entry."""
    start, window = 6, 4
    segment = Segment(0, start, ids(len(TREE_PARENTS)), TREE_PARENTS)
    depths = segment.depths()
    visible = visibility([segment], 1, segment.end, 10, window)[0]
    for row in range(len(TREE_PARENTS)):
        ancestors, node = {row}, int(TREE_PARENTS[row])
        while node >= 0:
            ancestors.add(node)
            node = int(TREE_PARENTS[node])
        for column, entry in enumerate(range(1, segment.end)):
            is_context = entry < start
            position = entry if is_context else start + depths[entry - start]
            is_near = position > start + depths[row] - window
            assert visible[row, column] == (is_near and (is_context or entry - start in ancestors))
    assert visible[len(TREE_PARENTS) :].any(axis=1).all()  # padding sees at least one entry


@pytest.mark.parametrize("num_slots", [1, 5], ids=["alone", "grouped"])
def test_a_tree_in_several_passes(model: Transformer, num_slots: int) -> None:
    """Level by level it is computed as in one pass, sliding windows included."""
    prompt, tree = ids(30), ids(len(TREE_PARENTS), seed=1)
    levels = [[0, 8], [1], [2, 4], [3, 5, 7], [6]]
    order = [node for level in levels for node in level]
    parents = np.array(
        [order.index(TREE_PARENTS[n]) if TREE_PARENTS[n] >= 0 else -1 for n in order], np.int32
    )
    whole, apart = new_cache(model, num_slots), new_cache(model, num_slots)
    for cache in (whole, apart):
        model.forward([Segment(i, 0, prompt) for i in range(num_slots)], cache)
    expected = model.forward([Segment(i, 30, tree[order], parents) for i in range(num_slots)], whole)
    pieces: list[list[torch.Tensor]] = [[] for _ in range(num_slots)]
    begin = 0
    for level in levels:
        end = begin + len(level)
        segments = [
            Segment(i, 30 + begin, tree[order[begin:end]], parents[:end], num_earlier=begin)
            for i in range(num_slots)
        ]
        for piece, logits in zip(pieces, model.forward(segments, apart).split(len(level)), strict=True):
            piece.append(logits)
        begin = end
    found = torch.cat([torch.cat(piece) for piece in pieces])
    assert difference(found, expected) < TOLERANCE


def test_a_chain_in_several_passes(model: Transformer) -> None:
    """One token at a time, as a chain is drafted."""
    prompt, chain = ids(30), ids(6, seed=1)
    whole, apart = new_cache(model), new_cache(model)
    for cache in (whole, apart):
        model.forward([Segment(0, 0, prompt)], cache)
    expected = model.forward([Segment(0, 30, chain)], whole)
    parents = np.arange(-1, 5, dtype=np.int32)
    found = [
        model.forward([Segment(0, 30 + i, chain[i : i + 1], parents[: i + 1], num_earlier=i)], apart)
        for i in range(6)
    ]
    assert difference(torch.cat(found), expected) < TOLERANCE


def test_hidden_states_are_those_of_the_reference(model: Transformer, reference: Any) -> None:
    prompt = ids(20)
    layers = (0, 1, model.config.num_layers)
    found = model.run([Segment(0, 0, prompt)], new_cache(model), layers).hidden
    assert found is not None
    with torch.no_grad():
        answer = reference(torch.from_numpy(prompt[None].astype(np.int64)), output_hidden_states=True)
    theirs = [hidden[0] for hidden in answer.hidden_states]
    ours = found.chunk(3, 1)
    assert difference(ours[0], theirs[0]) < TOLERANCE
    assert difference(ours[1], theirs[1]) < TOLERANCE
    assert difference(model.normed(ours[2]), theirs[-1]) < 10 * TOLERANCE  # theirs is behind the last norm
    assert difference(model.normed(ours[2]) @ model.vocabulary().T, model.logits(ours[2])) < TOLERANCE
