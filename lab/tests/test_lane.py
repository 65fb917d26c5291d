"""The example's calls, and lanes that take turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.models import bundled_model_dir
from benchmarks.harness import calls
from lab.lane import Lane, take_turns
from lab.price.measure import DRAFTS, LEARNED, OFF, PRICES


def test_the_calls_are_the_same_every_time() -> None:
    first, again = calls.load(2, seed=1), calls.load(2, seed=1)
    assert first == again
    assert [len(question) for question in first] == [7, 7]
    assert len({request.request_id for question in first for request in question}) == 14
    assert [request.request_id for request in first[0] if request.tags.prediction] == ["q0/extract"]
    assert calls.load(2, seed=2) != first


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Use one thread, like the benchmark itself. A second thread only waits, and long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("num_clients", [1, 2])
def test_lanes_answer_every_call_alike(num_clients: int) -> None:
    questions = [question[:2] for question in calls.load(2, seed=1)]
    folder = bundled_model_dir()
    model, tokenizer = load_model(folder), Tokenizer.load(folder)
    drafts = {OFF: DraftConfig(mode="off"), LEARNED: DRAFTS}
    lanes = {
        name: Lane(
            model,
            tokenizer,
            questions,
            drafts[name],
            PRICES[name],
            num_clients,
        )
        for name in drafts
    }
    take_turns(list(lanes.values()))
    outputs = lanes[OFF].outputs
    assert set(outputs) == {request.request_id for question in questions for request in question}
    for name, lane in lanes.items():
        assert lane.is_done
        assert lane.outputs == outputs
        assert lane.num_tokens == sum(map(len, outputs.values()))
        assert lane.cpu_s > 0
        assert (lane.speculation()["drafted_per_step"] > 0) == (name != OFF)
