"""Endless outputs, and requests that start and finish."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from lab.churn.meter import Meter
from lab.churn.scopes import SCOPES
from lab.churn.texts import Texts, load
from lab.churn.traffic import NUM_LIVE, STEP_TOKENS, Traffic
from lab.churn.workloads import Popular, Router


def dataset(first_token: int) -> list[Tokens]:
    """Return ten outputs of 20 tokens that occur in no other dataset."""
    return [np.arange(20, dtype=np.int32) + first_token + 20 * i for i in range(10)]


@pytest.fixture
def datasets() -> list[list[Tokens]]:
    return [dataset(0), dataset(1000), dataset(2000)]


def test_datasets_take_turns_twice(datasets: list[list[Tokens]]) -> None:
    texts = Texts(datasets)
    most = [
        Counter(texts.next((turn + 0.5) / 6)[0] for _ in range(100)).most_common(1)[0] for turn in range(6)
    ]
    assert [number for number, _ in most] == [0, 1, 2, 0, 1, 2]
    assert all(60 < times < 100 for _, times in most)


def test_half_of_the_outputs_are_varied_by_known_tokens(datasets: list[list[Tokens]]) -> None:
    recorded = {text.tobytes() for dataset in datasets for text in dataset}
    known = set(np.concatenate([text for dataset in datasets for text in dataset]).tolist())
    texts = Texts(datasets)
    drawn = [texts.next(0.0)[1] for _ in range(400)]
    assert 150 < sum(text.tobytes() in recorded for text in drawn) < 250
    assert all(text.dtype == np.int32 and len(text) == 20 and set(text.tolist()) <= known for text in drawn)
    assert {text.tobytes() for dataset in datasets for text in dataset} == recorded


def test_a_router_says_little_and_then_much(datasets: list[list[Tokens]]) -> None:
    texts = Router(datasets)
    before, after = [texts.next(0.0) for _ in range(2_000)], [texts.next(Router.CHANGE) for _ in range(100)]
    lengths = Counter(len(text) for _, text in before)
    assert set(lengths) == {1, 2, 3, 20}
    assert 5 <= lengths[20] <= 50
    assert {number for number, text in before if len(text) < 20} == {0}
    assert {len(text) for _, text in after} == {20}


def test_one_output_is_popular_and_then_none(datasets: list[list[Tokens]]) -> None:
    texts = Popular(datasets)
    before, after = [texts.next(0.0) for _ in range(2_000)], [texts.next(Popular.CHANGE) for _ in range(100)]
    occurrences = Counter(text.tobytes() for _, text in before)
    [(popular, often), (_, second)] = occurrences.most_common(2)
    assert len(np.frombuffer(popular, np.int32)) == Popular.NUM_TOKENS
    assert 1_860 < often < 1_980
    assert second == 1
    assert len({text.tobytes() for _, text in after} - occurrences.keys()) == 100


@pytest.mark.parametrize("kind", [Texts, Router, Popular])
def test_the_same_of_each_kind_again(kind: type[Texts], datasets: list[list[Tokens]]) -> None:
    one, other = kind(datasets), kind(datasets)
    for i in range(100):
        assert one.next(i / 100)[1].tolist() == other.next(i / 100)[1].tolist()


def test_a_dataset_per_file_no_longer_than_asked(traces: Path) -> None:
    datasets = load(traces, 500)
    assert len(datasets) == 2
    assert all(500 <= sum(map(len, dataset)) < 700 for dataset in datasets)
    assert sum(map(len, load(traces, 10**9)[0])) > 5_000


def test_folders_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no traces"):
        load(tmp_path, 100)


@pytest.mark.parametrize("name", ["stage", "forest"])
def test_traffic(name: str, datasets: list[list[Tokens]]) -> None:
    scope = SCOPES[name]
    forest = scope.forest(1 << 20)
    meter = Meter(scope.memory_of(forest), 1 << 20)
    traffic = Traffic(forest, scope, Texts(datasets), meter)
    num_tokens = [traffic.step(0.0) for _ in range(4)]
    rest = 20 - STEP_TOKENS
    assert num_tokens == [NUM_LIVE * STEP_TOKENS, NUM_LIVE * rest] * 2
    assert forest.stats().num_requests == NUM_LIVE
    counts = {kind: one["count"] for kind, one in meter.figures().items()}
    assert counts["step"] == 4
    assert counts["start"] == 3 * NUM_LIVE
    assert counts["finish"] + counts["withdraw"] == 2 * NUM_LIVE
    assert traffic.num_learned == counts["finish"]
    used = [stage for stage in scope.stages() if forest.stats(stage).num_requests]
    assert {stage.tenant for stage in used} == set(scope.tenants)
    assert len({stage.path for stage in used}) == (1 if name == "stage" else 3)
    forest.check_integrity()
