"""The calls of a recorded set, and models of a shape with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.engine.model.config import ModelConfig
from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.replay.drafter import PromptLookup
from agentspec.stages import StageKey
from lab.price.shapes import CONFIGS, Chosen
from lab.price.shapes import load as load_model
from lab.price.work import WorkSizes, load
from lab.replay.live import LiveDrafter
from tests.support.checkpoints import make_tokenizer

PLAN = "first look at the files, then change one line, then run the tests again"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two stages with nearly the same answer every time."""
    path = tmp_path_factory.mktemp("trace") / "calls.jsonl"
    asked = [{"role": "user", "content": "what now?"}]
    records: list[dict[str, Any]] = [
        {"messages": asked, "response": f"{PLAN} {number}", "stage": ("plan", "bugs/act")[number % 2]}
        for number in range(20)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def letters(text: str) -> Tokens:
    return np.array([*text.encode()], np.int32)


def test_the_work(trace: Path) -> None:
    sizes = WorkSizes(calls=4, history=10, prompt_tokens=5, output_tokens=9)
    work = load(trace, sizes, letters)
    assert [stage for stage, _ in work.history] == ["plan", "bugs/act"] * 5
    assert len(work.calls) == 4
    assert bytes(work.calls[0].prompt.tolist()) == b"nt|>\n"
    assert bytes(work.calls[0].response.tolist()) == PLAN.encode()[:9]
    assert work.calls[0].is_cut
    assert work.calls[1].key == StageKey.parse("trace/bugs_act")
    assert len(load(trace, WorkSizes(100, 200, 1024, 128), letters).calls) == 20


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("")
    with pytest.raises(ConfigError, match="no calls to measure"):
        load(path, WorkSizes(40, 200, 1024, 128), letters)


def test_the_shapes_are_those_of_models() -> None:
    for config in CONFIGS.values():
        shape = {"vocab_size": 1000, "max_position_embeddings": 10, **config}
        assert ModelConfig.from_json(shape).num_layers > 1


@pytest.fixture
def _same_threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_same_threads")
def test_a_shape_from_a_configuration(llama_checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text((llama_checkpoint / "config.json").read_text())
    measured = load_model(Chosen(None, str(config), dtype="bfloat16", threads=1))
    assert (measured.name, measured.model.dtype) == (tmp_path.name, torch.bfloat16)
    with pytest.raises(ConfigError, match=r"put the model's tokenizer\.json next to"):
        measured.encode("größer")
    make_tokenizer(tmp_path)
    measured = load_model(Chosen(None, str(config), threads=1))
    assert len(measured.encode("größer"))


@pytest.mark.usefixtures("_same_threads")
@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (Chosen(None, "gpt-9"), "a shape is one of"),
        (Chosen(None, "bundled", dtype="half"), "dtype must be one of"),
        (Chosen(None, "bundled", device="cuda:99"), "can't be made on device"),
    ],
)
def test_what_there_is_not(chosen: Chosen, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_model(chosen)


def test_a_drafter_as_a_proposer() -> None:
    proposer = LiveDrafter(PromptLookup(8))
    proposer.start("r", StageKey.parse("a"), letters("abcdef ab"))
    (draft,) = proposer.step([("r", letters("cd"))])
    assert bytes(draft.token_ids.tolist()).startswith(b"ef ab")
    proposer.observe("r", letters("ef"))
    proposer.finish("r")
    proposer.start("r", StageKey.parse("a"), letters("x"))
