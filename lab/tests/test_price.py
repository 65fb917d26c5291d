"""``python -m lab price``: lanes with recorded outputs, and the figures."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agentspec.errors import ConfigError
from lab.price.measure import (
    FIXED_PRICES,
    LEARNED,
    OFF,
    PRICES,
    averaged,
    figures,
    is_unclear,
    measure,
    serve,
)
from lab.price.run import CARD
from lab.price.shapes import Chosen, load
from lab.price.sizes import FULL, QUICK, Sizes
from lab.price.work import EngineCall, Work

SIZES = Sizes(num_clients=(1, 2), prompt_tokens=8, output_tokens=24)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize(("num_clients", "number"), [(1, 0), (2, 1)])
def test_every_variant_gives_the_recorded_outputs(num_clients: int, number: int) -> None:
    model = load(Chosen(None, "bundled"))
    repeated = np.tile(np.arange(20, 26, dtype=np.int32), 4)
    calls = [
        EngineCall("plan", f"s{i}", np.arange(20, 24 + i, dtype=np.int32), repeated, is_cut=i % 2 == 0)
        for i in range(3)
    ]
    found = serve(model, Work([("plan", repeated)], calls), calls, num_clients, SIZES, number)
    assert list(found) == list(PRICES)
    assert all(one["outputs_identical"] and one["tokens_per_s"] > 0 for one in found.values())
    assert found[OFF]["drafted_per_step"] == 0
    assert found[f"fixed {FIXED_PRICES[0]}"]["tokens_per_step"] > 1.5
    assert found[f"fixed {FIXED_PRICES[0]}"]["price"] == pytest.approx(FIXED_PRICES[0])


def test_rounds_are_averaged() -> None:
    def one(off: float, others: float, is_same: bool) -> dict[str, dict[str, object]]:
        rates = {name: off if name == OFF else others for name in PRICES}
        return {name: {"tokens_per_s": rate, "outputs_identical": is_same} for name, rate in rates.items()}

    found = averaged([one(10, 12, True), one(20, 20, False)])
    assert found[OFF] == {"tokens_per_s": 15, "outputs_identical": False, "speed": 1, "speeds": [1, 1]}
    assert found[LEARNED]["speeds"] == [1.2, 1]
    assert found[LEARNED]["speed"] == pytest.approx(1.1)
    assert found[LEARNED]["outputs_identical"] is False


@pytest.mark.parametrize(
    ("speeds", "is_wanted"),
    [([0.974], True), ([0.93], False), ([1.05, 0.97], True), ([0.95, 0.96], False), ([1.02] * 9, False)],
)
def test_a_load_is_measured_again_where_it_may_be_slower(speeds: list[float], is_wanted: bool) -> None:
    assert is_unclear(speeds) is is_wanted


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize(("further_s", "num_rounds"), [(0, 2), (60, 3)])
def test_rounds_are_added_until_a_speed_is_clear(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, further_s: float, num_rounds: int
) -> None:
    rates = iter([1.0, 1.0, 1.2, 1.3])

    def served(*_: object) -> dict[str, dict[str, object]]:
        rate = next(rates)
        return {
            name: {"tokens_per_s": rate if name == LEARNED else 1.0, "outputs_identical": True}
            for name in PRICES
        }

    with gzip.open(tmp_path / "one.jsonl.gz", "wt") as file:
        for i in range(4):
            call = {"session": f"s{i}", "stage": "plan", "prompt": "ab", "response": "one two"}
            file.write(json.dumps(call) + "\n")
    monkeypatch.setattr("lab.price.measure.serve", served)
    sizes = Sizes(("one",), num_clients=(1,), history=1, rounds=2, further_s=further_s)
    cell = measure("bundled", tmp_path, sizes, 1, lambda _: None)["by_load"]["one, 1"]
    assert len(cell[LEARNED]["speeds"]) == num_rounds


def test_the_best_fixed_price_is_one_for_all_loads() -> None:
    def cell(learned: float, *fixed: float) -> dict[str, dict[str, object]]:
        speeds = dict(zip(PRICES, (1.0, learned, *fixed), strict=True))
        return {name: {"speed": speed, "outputs_identical": True} for name, speed in speeds.items()}

    found = figures({"a, 1": cell(1.9, 2.0, 1.8, 1.0), "b, 1": cell(0.99, 0.6, 1.0, 1.0)})
    assert found["price_vs_none_min"] == 0.99
    assert found["price_vs_best_fixed_mean"] == pytest.approx((1.9 + 0.99) / (1.8 + 1.0))
    assert found["outputs_identical"] is True


def test_bars_cover_all_shapes() -> None:
    parts = {
        "bundled": {"price_vs_none_min": 0.97, "price_vs_best_fixed_mean": 1.1, "outputs_identical": True},
        "qwen-0.5b": {"price_vs_none_min": 0.99, "price_vs_best_fixed_mean": 0.9, "outputs_identical": True},
    }
    assert CARD.summary(parts) == {
        "price_vs_none_min": 0.97,
        "price_vs_best_fixed_mean": 1.0,
        "outputs_identical": True,
        "shapes": 2,
    }
    passed = {bar.part: bar.passes(parts) for bar in CARD.bars if bar.figure == "price_vs_none_min"}
    assert passed == {"bundled": False, "smollm-135m": None, "qwen-0.5b": True}
    assert CARD.summary({})["price_vs_none_min"] is None


def test_each_client_has_four_calls_at_least() -> None:
    assert FULL.num_calls(16, least=8) == 64
    assert FULL.num_calls(1, least=8) == 8
    assert QUICK.work(least=3).calls == 16


@pytest.mark.usefixtures("_one_thread")
def test_a_missing_set_is_named(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "other.jsonl.gz", "wt") as file:
        file.write('{"session": "s", "stage": "plan", "prompt": "a", "response": "b"}\n')
    with pytest.raises(ConfigError, match="has no set 'rsl_sql_bird_dev_gpt4o'"):
        measure("bundled", tmp_path, QUICK, 1, lambda _: None)


@pytest.mark.usefixtures("_one_thread")
def test_a_set_with_too_few_calls_is_named(tmp_path: Path) -> None:
    for name in QUICK.sets:
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.write('{"session": "s", "stage": "plan", "prompt": "ab", "response": "one two"}\n' * 3)
    with pytest.raises(ConfigError, match="'rsl_sql_bird_dev_gpt4o' has 3 calls to measure, not 16"):
        measure("bundled", tmp_path, QUICK, 1, lambda _: None)
