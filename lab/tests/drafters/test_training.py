"""Training of heads: the unrolled loss is what a head of the published format drafts, and it falls."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from lab.drafters.eagle_checkpoint import load_eagle
from lab.drafters.medusa import load_medusa
from lab.drafters.model_drafter import DraftNetwork
from lab.drafters.mtp import load_mtp
from lab.drafters.training.eagle import TrainableEagle
from lab.drafters.training.loop import Plan, Report, train
from lab.drafters.training.medusa import HEAD_DISCOUNT, TrainableMedusa
from lab.drafters.training.mtp import TrainableMtp
from lab.drafters.training.publish import write_eagle, write_medusa, write_mtp
from lab.drafters.training.texts import Observer, Texts
from lab.drafters.training.unrolled import STEP_DISCOUNT, UnrolledAttention, UnrolledHead

LAYERS = (1, 2, 3)
TOLERANCE = 2e-3  # the files are float16
SIZES = (9, 14)  # of the texts
NUM_PROMPT = 4


@pytest.fixture(scope="module")
def model(llama_checkpoint: Path) -> Transformer:
    return load_model(llama_checkpoint)


def texts(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Texts:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(sizes), max(sizes), dtype=torch.int64)
    is_output = torch.zeros(ids.shape, dtype=torch.bool)
    for row, size in enumerate(sizes):
        ids[row, :size] = torch.randint(4, 380, (size,), generator=generator)
        is_output[row, NUM_PROMPT:size] = True
    return Texts(ids, is_output)


def new_eagle(model: Transformer) -> TrainableEagle:
    torch.manual_seed(3)
    shape = replace(model.config, num_layers=1, layer_windows=(None,))
    return TrainableEagle(shape, model.embed(torch.arange(384)).clone(), 3 * model.config.hidden_size)


def test_observed_chances_and_features(model: Transformer) -> None:
    batch = texts()
    observed = Observer(model, LAYERS).observe(batch)
    for row, size in enumerate(SIZES):
        ids = batch.ids[row, :size].numpy().astype(np.int32)
        cache = KVCache(model.config, 1, 32, model.dtype, "cpu")
        alone = model.run([Segment(0, 0, ids)], cache, LAYERS)
        assert alone.hidden is not None
        assert torch.allclose(observed.features[row, :size], alone.hidden, atol=1e-4)
        assert torch.allclose(observed.chances[row, :size], alone.logits.softmax(1), atol=1e-4)


def new_mtp(model: Transformer, *, is_random: bool = True) -> TrainableMtp:
    torch.manual_seed(3)
    shape = replace(model.config, num_layers=1, layer_windows=(None,), has_qkv_bias=True)
    norm = model.normed(torch.ones(1, model.config.hidden_size, dtype=model.dtype))[0]
    head = TrainableMtp(shape, model.embed(torch.arange(384)).clone(), model.vocabulary(), norm)
    if is_random:
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.2)
    return head


def test_the_loss_of_eagle_is_that_of_its_drafts(model: Transformer, tmp_path: Path) -> None:
    trained = new_eagle(model)
    write_eagle(tmp_path, trained, model.config, LAYERS)
    expect_the_loss_of_drafts(model, trained, load_eagle(tmp_path, model))


def test_a_head_of_eagle_has_no_biases(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Its published format has none, whatever the served model has."""
    qwen = load_model(checkpoint("qwen2"))
    trained = new_eagle(qwen)
    write_eagle(tmp_path, trained, qwen.config, LAYERS)
    expect_the_loss_of_drafts(qwen, trained, load_eagle(tmp_path, qwen))
    assert not any("bias" in name for name in trained.published())


def test_the_loss_of_mtp_is_that_of_its_drafts(
    model: Transformer, llama_checkpoint: Path, tmp_path: Path
) -> None:
    trained = new_mtp(model)
    write_mtp(tmp_path, trained, llama_checkpoint)
    expect_the_loss_of_drafts(model, trained, load_mtp(tmp_path, model))


def expect_the_loss_of_drafts(model: Transformer, trained: UnrolledHead, head: DraftNetwork) -> None:
    """Check the loss, draft by draft, with the published head as the engine runs it."""
    num_steps = 3
    batch = texts()
    observed = Observer(model, head.hidden_layers).observe(batch)
    losses: list[list[float]] = [[] for _ in range(num_steps)]
    for row, size in enumerate(SIZES):
        ids = batch.ids[row, :size].numpy().astype(np.int32)
        for last in range(size):  # drafts behind this token's features, with the recorded tokens
            cache = head.make_cache(1, 32)
            known = ids[1 : last + 2]
            if len(known) <= last:
                continue
            carried = head.read(observed.features[row, : last + 1])
            handed_on = head.forward([Segment(0, 0, known)], carried, cache)[-1:]
            for step in range(num_steps):
                place = last + 2 + step
                if place < size and bool(batch.is_output[row, place]):
                    chances = observed.chances[row, place - 1]
                    losses[step].append(-float((chances * head.log_probs(handed_on, 1)[0]).sum()))
                if place >= size:
                    break
                node = Segment(0, last + 1 + step, ids[place : place + 1])
                handed_on = head.forward([node], handed_on, cache)
    weights = [STEP_DISCOUNT**step for step in range(num_steps)]
    expected = sum(w * float(np.mean(one)) for w, one in zip(weights, losses, strict=True)) / sum(weights)
    assert trained.loss(observed, num_steps).item() == pytest.approx(expected, rel=TOLERANCE)


def test_a_head_can_start_as_the_served_model_s_last_layer(model: Transformer) -> None:
    """Before training, what it reads from the features is the token that the model would give next."""
    layers = (0, 1, model.config.num_layers)
    observed = Observer(model, layers).observe(texts())
    head = new_eagle(model)
    norm = model.normed(torch.ones(1, model.config.hidden_size, dtype=model.dtype))[0]
    head.start_from(model.vocabulary(), norm)
    read = head.fc(observed.features)
    assert torch.equal(read, observed.features[..., -model.config.hidden_size :])
    chances = head.lm_head(head.norm(read)).softmax(-1)
    assert torch.allclose(chances, observed.chances, atol=1e-4)
    head.loss(observed, 2).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())


def test_an_untrained_mtp_head_says_what_the_model_says(model: Transformer) -> None:
    """Before training, it hands on the features behind the served model's last norm."""
    observed = Observer(model, (3,)).observe(texts())
    head = new_mtp(model, is_random=False)
    scores = head._scores(
        head._forward(head._embedding[observed.texts.ids], observed.features, UnrolledAttention())
    )
    assert torch.allclose(scores.softmax(-1), observed.chances, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "llama_tied"])
def test_a_checkpoint_with_an_mtp_head_is_the_same_model(
    checkpoint: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    served = load_model(checkpoint(family))
    head = new_mtp(served)
    shutil.copytree(checkpoint(family), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "heads" / "mtp"  # within the model's own folder
    write_mtp(path, head, tmp_path)
    ids = texts().ids[1].numpy().astype(np.int32)
    logits = [
        one.forward([Segment(0, 0, ids)], KVCache(one.config, 1, 32, one.dtype, "cpu"))
        for one in (served, load_model(path))
    ]
    assert torch.equal(*logits)
    assert (path / "tokenizer.json").is_file()
    assert not (path / "heads").exists()


def test_the_matrix_to_the_vocabulary_behind_a_norm_with_zeros(checkpoint: Callable[[str], Path]) -> None:
    served = load_model(checkpoint("llama"))
    norm = served._norm
    assert norm.scale is not None
    with torch.inference_mode():
        norm.scale[3] = 0
    assert served.logits_of_normed(torch.randn(2, 64)).isfinite().all()
    assert served.vocabulary().isfinite().all()


def test_the_loss_of_medusa_is_that_of_its_drafts(model: Transformer, tmp_path: Path) -> None:
    batch = texts()
    read = Observer(model, (3,)).observe(batch)
    observed = replace(read, features=model.normed(read.features).clone())
    trained = TrainableMedusa(model.vocabulary(), 2)
    write_medusa(tmp_path, trained)
    heads = load_medusa(tmp_path, model)
    losses: list[list[float]] = [[], []]
    for row, size in enumerate(SIZES):
        carried = heads.read(read.features[row])
        for place in range(NUM_PROMPT, size):
            for level in (1, 2):
                if place - level - 1 >= 0:
                    scores = heads.log_probs(carried[place - level - 1][None], level)[0]
                    losses[level - 1].append(-float((observed.chances[row, place - 1] * scores).sum()))
    weights = [1, HEAD_DISCOUNT]
    expected = sum(w * float(np.mean(one)) for w, one in zip(weights, losses, strict=True)) / sum(weights)
    assert trained.loss(observed, 2).item() == pytest.approx(expected, rel=TOLERANCE)


def test_untrained_medusa_heads_say_what_the_model_says(model: Transformer) -> None:
    """They begin as the served model's own matrix."""
    read = Observer(model, (3,)).observe(texts())
    rows = model.normed(read.features)
    assert torch.allclose((rows @ model.vocabulary().T).softmax(-1), read.chances, atol=1e-4)


@pytest.mark.parametrize("kind", ["eagle", "medusa", "mtp"])
def test_a_head_learns(model: Transformer, tmp_path: Path, kind: str) -> None:
    """After some steps on one batch it drafts that batch, read from its file."""
    observed = Observer(model, LAYERS if kind == "eagle" else (3,)).observe(texts((20, 20)))
    if kind == "medusa":
        observed = replace(observed, features=model.normed(observed.features).clone())
    heads: dict[str, Callable[[], Any]] = {
        "eagle": lambda: new_eagle(model),
        "medusa": lambda: TrainableMedusa(model.vocabulary(), 2),
        "mtp": lambda: new_mtp(model, is_random=False),
    }
    head = heads[kind]()
    before = head.loss(observed, 2).item()
    reports: list[Report] = []
    plan = Plan(num_steps=40, num_drafted=2, warm_up=5, report_every=15, rate=3e-3)
    train(head, repeat(observed), plan, reports.append)
    assert [report.step for report in reports] == [15, 30, 40]
    entropy = -float((observed.chances * observed.chances.clamp_min(1e-9).log()).sum(-1).mean())
    assert head.loss(observed, 2).item() < before - 0.3 * (before - entropy)
