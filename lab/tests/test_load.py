"""``python -m lab load``: the calls, a lane, and the report on rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.models import bundled_model_dir
from agentspec.reporting.report import Outputs, run
from benchmarks.harness import calls
from lab.load import report
from lab.load import run as load_run
from lab.load.lane import Lane
from lab.load.measure import Sizes, take_turns
from lab.load.variants import AUTO, FIXED, OFF, VARIANTS


def served(rate: float, **others: float) -> dict[str, dict[str, Any]]:
    """Return a round in which all variants except the named ones have the same rate."""
    rates = {name: others.get(name.replace(" ", "_"), rate) for name in VARIANTS}
    return {
        name: {
            "tokens_per_cpu_s": rate,
            "tokens_per_s": rate,
            "outputs_identical": True,
            "price": 0.5,
            "tokens_per_step": 2.0,
            "drafted_per_step": 3.0,
            "acceptance_rate": 0.5,
        }
        for name, rate in rates.items()
    }


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
    lanes = {
        name: Lane(model, tokenizer, questions, VARIANTS[name].draft, VARIANTS[name].price, num_clients)
        for name in (OFF, *AUTO)
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


def test_a_round_that_was_slow_for_all_changes_nothing() -> None:
    rounds = {1: [served(100, learned_auto=110), served(50, learned_auto=55), served(100, learned_auto=110)]}
    rates = report.rates(rounds)
    assert rates["learned auto"][1] / rates["learned 0.1"][1] == pytest.approx(1.1)
    assert rates["learned 0.1"][1] == pytest.approx(100)


def test_the_bars() -> None:
    rounds = {1: [served(100, off=50, learned_auto=98)], 8: [served(100, off=50, learned_auto=104)]}
    summed = report.summary(rounds)
    learned, paper = summed["learned_auto"], summed["paper_auto"]
    assert learned["least_against_best_fixed"] == pytest.approx(0.98)
    assert learned["least_against_off"] == pytest.approx(1.96)
    assert learned["mean_against_best_fixed"] == pytest.approx(1.01)
    assert report.passes(learned)
    assert not report.passes(paper)  # no better than a fixed price
    assert not report.passes({**learned, "least_against_best_fixed": 0.96})
    assert not report.passes({**learned, "least_against_off": 0.99})
    assert summed["outputs_identical"]


def test_the_whole_report(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(load_run, "measure", lambda sizes, announce: {1: [served(100)], 8: [served(100)]})
    path = tmp_path / "load.json"
    assert run(lambda announce: load_run.make_report(Sizes(1, 1, (1, 8)), announce), Outputs(json=path)) == 0
    line = json.loads(path.read_text())
    assert line["summary"]["outputs_identical"] is True
    assert line["figures"]["off"]["8"]["rounds"] == [100]
    assert line["provenance"]["arguments"]["num_clients"] == [1, 8]


def test_the_report() -> None:
    rounds = {1: [served(100)], 8: [served(100), served(120)]}
    assert report.table(rounds).row_count == len(VARIANTS)
    figures = report.figures(rounds)
    assert set(figures) == {OFF, "paper 0.25", *FIXED, *AUTO}
    assert figures["off"]["8"]["rounds"] == [100, 120]
    assert len(report.notes(rounds)) == 3
