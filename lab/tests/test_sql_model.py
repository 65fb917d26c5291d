"""The trainer: samples, tokenizer and a few real steps. The bundled model has the same form as its output."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from agentspec.models import bundled_model_dir
from examples.agentic_sql import samples
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.questions import HELD_OUT, TRAINING, Question, draw
from lab.sql_model import batches, network, vocabulary
from lab.sql_model.__main__ import held_out, training
from lab.sql_model.draft_model import train_draft_model
from lab.sql_model.train import Plan, exact_match, train


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Database]:
    return open_all(tmp_path_factory.mktemp("databases"))


@pytest.fixture(scope="module")
def bundled() -> Tokenizer:
    return Tokenizer.from_file(str(bundled_model_dir() / "tokenizer.json"))


def test_samples_cover_every_stage_and_repeat_with_the_seed(databases: dict[str, Database]) -> None:
    first, again = (list(islice(samples.stream(databases, 5), 300)) for _ in range(2))
    assert first == again
    assert {s.stage for s in first} == {"classify", "extract", "enrich", "sql", "combine"}
    assert any("SQLite says" in s.messages[-1]["content"] for s in first)


def test_a_broken_query_in_a_correction_sample_really_fails(databases: dict[str, Database]) -> None:
    checked = 0
    for sample in islice(samples.stream(databases, 6), 3000):
        if len(sample.messages) == 4:
            assert any(d.query(sample.messages[2]["content"]).error for d in databases.values())
            assert any(d.query(sample.target).error is None for d in databases.values())
            checked += 1
    assert checked > 20


def test_a_value_has_the_same_tokens_in_question_json_and_sql(bundled: Tokenizer) -> None:
    for value in ("Lyon", "Trozerk", "Golden Lamp", "2019", "85"):
        ids = bundled.encode(value).ids
        for text in (f"from {value} and", f'"value": "{value}"', f"= '{value}' AND"):
            found = bundled.encode(text).ids
            assert any(found[i : i + len(ids)] == ids for i in range(len(found))), text


def test_the_tokenizer_gives_back_any_text(bundled: Tokenizer) -> None:
    text = "Größe 東京 {\n} 'it''s' SELECT T1.name\tFROM x -- ?"
    assert bundled.decode(bundled.encode(text).ids) == text


def test_wanted_positions_are_those_before_each_target_token(
    databases: dict[str, Database], bundled: Tokenizer
) -> None:
    sample = next(samples.of_question(_question(), databases, Random(1)))
    ids, num_prompt = batches.encode(sample, bundled)
    batch = batches.make([(ids, num_prompt, sample.stage), (ids[:-3], num_prompt, "shorter")])
    assert batch.labels[(batch.rows == 0) & batch.is_target].tolist() == ids[num_prompt:]
    assert batch.labels[(batch.rows == 1) & batch.is_target].tolist() == ids[num_prompt:-3]


def _question() -> Question:
    return draw(TRAINING, Random(3))


@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_a_stopped_run_goes_on(
    databases: dict[str, Database], bundled: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(num_steps=6, batch_tokens=1024, warmup=1, report_every=3, num_evaluation_batches=1)
    sources = partial(training, bundled, databases, plan), list(islice(held_out(bundled, databases), 1))
    train(network.Shape(), *sources, plan, tmp_path)
    again = Plan(num_steps=9, batch_tokens=1024, warmup=1, report_every=3, num_evaluation_batches=1)
    trained = train(network.Shape(), *sources, again, tmp_path)
    reports = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert [f'"step": {n}' in r for n, r in zip((3, 6, 9), reports, strict=True)] == [True] * 3
    assert capsys.readouterr().out.count("loss") == 3
    assert torch.isfinite(trained.embedding.weight).all()


def test_the_bundled_model_answers_held_out_samples(
    databases: dict[str, Database], bundled: Tokenizer
) -> None:
    """Check the teacher-forced exact match per stage on a few hundred held-out samples."""
    from transformers import LlamaForCausalLM

    held_out = samples.stream(databases, "a test", HELD_OUT)
    few = list(islice(batches.stream(held_out, bundled, 4096, 0), 3))
    model = LlamaForCausalLM.from_pretrained(bundled_model_dir(), dtype=torch.float32)
    exact = exact_match(lambda ids, wanted: model(ids).logits[wanted], few)
    assert min(exact.values()) > 0.6, exact


def test_a_saved_network_computes_the_same_in_transformers(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    shape = network.Shape(vocab_size=300, hidden=64, intermediate=96, num_layers=2, num_heads=4, max_len=64)
    ours = network.Network(shape)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(parameter.half())  # the file's precision
    network.save(ours, tmp_path, eos_id=1, pad_id=0)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, 300, (2, 20))
    with torch.no_grad():
        expected = theirs(ids).logits
        got = ours(ids, torch.ones_like(ids, dtype=torch.bool)).view_as(expected)
    assert (expected - got).abs().max() < 1e-4
    loaded = network.load(tmp_path).state_dict()
    assert loaded.keys() == ours.state_dict().keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in ours.state_dict().items())


@pytest.mark.slow
def test_a_draft_model_learns_the_chances_of_the_model_that_it_drafts_for(
    databases: dict[str, Database], tmp_path: Path
) -> None:
    found = partial(samples.stream, databases)
    losses = []
    for num_steps in (1, 8):
        plan = Plan(num_steps=num_steps, batch_tokens=1024, warmup=1, copying_steps=0)
        train_draft_model(bundled_model_dir(), found, plan, tmp_path / str(num_steps))
        losses.append(_divergence(network.load(tmp_path / str(num_steps)), databases))
    assert losses[1] < 0.9 * losses[0]


@torch.no_grad()
def _divergence(student: network.Network, databases: dict[str, Database]) -> float:
    """Return the mean divergence of a student's chances from the bundled model's."""
    tokenizer = Tokenizer.from_file(str(bundled_model_dir() / "tokenizer.json"))
    batch = next(batches.stream(samples.stream(databases, "a test"), tokenizer, 1024, 0))
    teacher, ours = (
        one(batch.ids, batch.wanted).log_softmax(-1) for one in (network.load(bundled_model_dir()), student)
    )
    return float((teacher.exp() * (teacher - ours)).sum(-1).mean())


def test_the_bundled_model_fits_its_limits() -> None:
    assert (bundled_model_dir() / "model.safetensors").stat().st_size < 16 * 2**20
    num_parameters = sum(p.numel() for p in network.Network(network.Shape()).parameters())
    assert num_parameters < 8_000_000
    config = json.loads((bundled_model_dir() / "tokenizer_config.json").read_text())
    assert config["chat_template"] == vocabulary.CHAT_TEMPLATE


def test_the_trainers_chat_template_is_the_engines(databases: dict[str, Database]) -> None:
    from agentspec.engine.text.tokenizer import Tokenizer as EngineTokenizer

    tokenizer = EngineTokenizer.load(bundled_model_dir())
    for sample in islice(samples.stream(databases, 9), 30):
        assert tokenizer.apply_chat_template(sample.messages) == vocabulary.render(sample.messages)


def test_the_network_copies_before_any_training(bundled: Tokenizer) -> None:
    torch.manual_seed(0)
    untrained = network.Network(network.Shape())
    few = [batches.encode(sample, bundled) for sample in islice(samples.copying(1), 20)]
    batch = batches.make([(ids, num_prompt, "copy") for ids, num_prompt in few])
    with torch.no_grad():
        right = untrained(batch.ids, batch.wanted).argmax(-1) == batch.labels
    assert right[batch.is_target].float().mean() > 0.4
