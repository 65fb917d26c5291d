from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from agentspec.gateway.upstreams.routing import choose


@dataclass
class Engine:
    name: str
    weight: float = 1.0
    num_running: int = 0


def engines(*weights: float) -> list[Engine]:
    return [Engine(f"http://gpu-{number}", weight) for number, weight in enumerate(weights)]


def test_without_affinity_the_least_loaded_by_weight() -> None:
    targets = engines(1, 2)
    chosen = Counter()
    for _ in range(30):
        target = choose(targets, None, 1.25)
        target.num_running += 1
        chosen[target.name] += 1
    assert chosen == {"http://gpu-0": 10, "http://gpu-1": 20}


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 5)])
def test_affinities_are_shared_out_by_weight(weights: tuple[float, ...]) -> None:
    targets = engines(*weights)
    homes = Counter(choose(targets, f"stage {number}", 1e9).name for number in range(4000))
    for target in targets:
        assert homes[target.name] / 4000 == pytest.approx(target.weight / sum(weights), abs=0.03)


def test_an_engine_that_goes_moves_its_own_affinities_alone() -> None:
    targets = engines(1, 1, 1, 1)
    homes = {f"s{number}": choose(targets, f"s{number}", 1e9).name for number in range(400)}
    for affinity, home in homes.items():
        moved = choose(targets[1:], affinity, 1e9).name
        assert moved == home or home == targets[0].name


def test_none_takes_more_than_its_share_times_the_spill() -> None:
    targets = engines(1, 1, 1)
    for number in range(1, 301):
        target = choose(targets, "one busy stage", 1.25)
        target.num_running += 1
        assert max(one.num_running for one in targets) <= 1.25 * number / 3 + 1


def test_the_second_engine_of_a_stage_is_always_the_same() -> None:
    targets = engines(1, 1, 1)
    first = choose(targets, "a", 1.25)
    first.num_running = 100
    seconds = {choose(targets, "a", 1.25).name for _ in range(5)}
    assert len(seconds) == 1
    assert first.name not in seconds
