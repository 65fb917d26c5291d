"""``python -m lab open-text``: a model, its head and prompts, and the methods on its text."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentspec.errors import ConfigError
from agentspec.models import bundled_model_dir
from lab.command import main
from lab.methods import measure, methods, workloads
from lab.methods.sizes import Sizes as MethodSizes
from lab.methods.workloads import Places
from lab.open_text import train
from lab.open_text.samples import MEASURED, SETS, TRAINING, read_prompts, recorded
from lab.open_text.train import Sizes, build

WORDS = "once there was a city by the sea and people who told each other what they had seen".split()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("traces"), random.Random(3)
    for name in SETS:
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as lines:
            for number in range(40):
                call = {
                    "session": str(number),
                    "stage": f"kind {number % 2}",
                    "prompt": f"<|user|>{name} question {number % 20}: what was there?",  # two groups ask it
                    "response": " ".join(rng.choices(WORDS, k=30)),
                }
                lines.write(json.dumps(call) + "\n")
    return folder


@pytest.fixture(scope="module")
def built(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train for a moment."""
    out = tmp_path_factory.mktemp("out")
    build(traces, out / "model", Sizes(0.001, 0.001, 0.001, vocab_size=400, num_prompts=6))
    return out / "model"


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_no_prompt_is_in_both_halves(traces: Path) -> None:
    training, measured = recorded(traces, TRAINING), recorded(traces, MEASURED)
    assert 15 * len(SETS) < len(training) < 25 * len(SETS)
    assert 0 < len(measured) < 40 * len(SETS) - len(training)  # some prompts are in both
    asked = [{one.messages[0]["content"] for one in half} for half in (training, measured)]
    assert not asked[0] & asked[1]
    assert not any("<|" in text for half in asked for text in half)  # no special tokens


def test_a_missing_set_is_named(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "other.jsonl.gz", "wt") as lines:
        lines.write('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(ConfigError, match="spec_bench"):
        recorded(tmp_path, TRAINING)


def test_too_few_prompts_are_refused_before_the_training(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prompts to measure on, but 30 are needed"):
        build(traces, tmp_path / "model", Sizes(num_prompts=30))
    assert not (tmp_path / "model").exists()


def test_prompts_are_of_the_measured_half_and_of_all_sets_in_turn(built: Path, traces: Path) -> None:
    prompts = read_prompts(built)
    assert [one.stage.split("/")[0] for one in prompts] == list(SETS) * 6
    known = {one.messages[0]["content"] for one in recorded(traces, MEASURED)}
    assert {one.messages[0]["content"] for one in prompts} <= known
    assert len({one.messages[0]["content"] for one in prompts}) == len(prompts)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", ["open", "open_sampled"])
def test_methods_on_its_text(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "OPEN_TOKENS", 12)
    chosen = ("off", "learned", "eagle-3", "hybrid", "medusa", "mtp", "draft model")
    monkeypatch.setattr(measure, "METHODS", {key: methods.METHODS[key] for key in chosen})
    found = measure.measure(name, Places(open_text=built), MethodSizes(2), lambda _: None)
    assert found["missing"] == []
    for phase in ("cold", "warm"):
        assert all(one["outputs_identical"] for one in found[phase].values())


def test_what_is_there_is_not_trained_again(
    built: Path, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    shutil.copytree(built, out)
    shutil.rmtree(out / "heads" / "medusa")
    trained: list[str] = []
    monkeypatch.setattr(train, "train_head", lambda name, *_: trained.append(name))
    build(traces, out, Sizes(0.001, 0.001, 0.001, vocab_size=400, num_prompts=6))
    assert trained == ["medusa"]
    assert (out / "model.safetensors").read_bytes() == (built / "model.safetensors").read_bytes()


def test_cold_and_warm_prompts_differ(built: Path) -> None:
    cold, warm = (workloads.load("open", Places(open_text=built), 3, seed) for seed in (1, 2))
    texts = [{call.prompt[0]["content"] for [call] in load.questions} for load in (cold, warm)]
    assert [len(one) for one in texts] == [6, 6]
    assert not texts[0] & texts[1]
    assert {call.tags.stage.path[0] for [call] in cold.questions} == set(SETS)


def test_a_part_without_its_model_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["methods", "--only", "sql,open_budgets"]) == 1
    assert "--open-text" in capsys.readouterr().err
    assert main(["methods", "--only", "open", "--open-text", str(bundled_model_dir())]) == 1
    assert "prompts.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "much"])
def test_minutes_are_checked(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["open-text", "--traces", "x", "--minutes", minutes])
    assert "--minutes" in capsys.readouterr().err
