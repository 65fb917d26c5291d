from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.stages import StageKey
from agentspec.vllm_plugin.signals import Drafted
from agentspec.vllm_plugin.v2 import slots
from agentspec.vllm_plugin.v2.slots import FEW, WINDOW, WORTH, DraftSlots

MOST = 15
PRICE = 0.1
WRITE, CHECK = StageKey.parse("sql/write"), StageKey.parse("sql/check")


class Requests:
    """Requests of an asynchronous scheduler, one step after the other."""

    def __init__(self) -> None:
        self.slots = DraftSlots(MOST)

    def draft(self, name: str, length: int, *, stage: StageKey = WRITE, chance: float = 1.0) -> None:
        """Have a request draft ``length`` tokens, each accepted with this chance after those before it."""
        acceptance = np.zeros((1, MOST), np.float32)
        acceptance[0, :length] = np.cumprod([chance] * length)
        self.slots.add(name, stage)
        self.slots.learn(Drafted([name], [length], acceptance, PRICE))

    def run(
        self, lengths: Sequence[int], *, stage: StageKey = WRITE, times: int = FEW, chance: float = 1.0
    ) -> None:
        """Have requests draft these lengths, one after the other."""
        for _ in range(times):
            for length in lengths:
                self.draft("other", length, stage=stage, chance=chance)
            self.slots.forget(["other"])

    def num_slots(self, name: str = "probe") -> int:
        return self.slots.num_slots(name)


@pytest.fixture
def requests() -> Requests:
    return Requests()


def test_before_anything_is_learned_a_request_gets_all_slots(requests: Requests) -> None:
    requests.slots.add("probe", WRITE)
    assert requests.num_slots("probe") == requests.num_slots("stranger") == MOST
    requests.draft("probe", 4)
    assert requests.num_slots("probe") == MOST


def test_the_draft_before_says_what_follows(requests: Requests) -> None:
    requests.run([15, 3])
    requests.run([0, 8])
    requests.draft("probe", 15)
    assert requests.num_slots() == 3
    requests.draft("probe", 0)
    assert requests.num_slots() == 8


def test_a_slot_must_be_worth_its_price(requests: Requests) -> None:
    requests.run([1, 10], chance=0.7)
    requests.draft("probe", 1)
    num_worth = next(n for n in range(MOST) if 0.7 ** (n + 1) < WORTH * PRICE)
    assert requests.num_slots() == num_worth


def test_what_a_grammar_dictates_gets_slots(requests: Requests) -> None:
    requests.run([0, 2])
    requests.draft("probe", 0)
    assert requests.num_slots() == 2
    requests.slots.expect({"probe": 9, "stranger": 9})
    assert requests.num_slots() == 9
    requests.slots.expect({"probe": MOST + 1})
    assert requests.num_slots() == MOST
    requests.draft("probe", 0)  # of an earlier step
    assert requests.num_slots() == MOST
    requests.slots.expect({"probe": 1})
    assert requests.num_slots() == 2
    requests.slots.expect({"probe": 9})
    requests.slots.expect({})
    assert requests.num_slots() == 2


def test_at_a_price_of_one_nothing_that_is_dictated_gets_slots(requests: Requests) -> None:
    requests.run([0, 2])
    requests.draft("probe", 0)
    requests.slots.expect({"probe": 9})
    requests.slots.learn(Drafted(["stranger"], [0], np.zeros((1, MOST), np.float32), price=1.0))
    assert requests.num_slots() == 2


def test_slots_that_short_drafts_leave_empty_count(requests: Requests) -> None:
    rare = int(1 / (WORTH * PRICE))  # a long draft in one case of so many is worth it
    requests.run([*[5, 0] * (rare - 1), 5, 12])
    requests.draft("probe", 5)
    assert requests.num_slots() == 12
    requests.run([*[5, 0] * (2 * rare), 5, 12])
    assert requests.num_slots() == 0


def test_first_drafts_are_learned_by_stage(requests: Requests) -> None:
    requests.run([12], stage=WRITE)
    requests.run([0], stage=CHECK)
    for stage, expected in ((WRITE, 12), (CHECK, 0)):
        requests.slots.add(stage.name, stage)
        assert requests.num_slots(stage.name) == expected


def test_a_new_stage_learns_from_all_others(requests: Requests) -> None:
    requests.run([3, 7], stage=WRITE)
    requests.draft("probe", 3, stage=CHECK)
    assert requests.num_slots() == 7


def test_stages_of_two_tenants_are_two(requests: Requests) -> None:
    requests.run([12], stage=StageKey.parse("sql/write", "a"))
    requests.run([2], stage=StageKey.parse("sql/write", "b"))
    requests.slots.add("probe", StageKey.parse("sql/write", "b"))
    assert requests.num_slots() == 2


def test_the_past_fades(requests: Requests) -> None:
    requests.run([12], times=2 * WINDOW)
    requests.run([0], times=8 * WINDOW)
    requests.slots.add("probe", WRITE)
    assert requests.num_slots() == 0


def test_without_a_price_every_slot_is_worth_it(requests: Requests) -> None:
    requests.slots.add("probe", WRITE)
    for _ in range(FEW):
        requests.slots.add("other", WRITE)
        requests.slots.learn(Drafted(["other"], [0], np.zeros((1, MOST), np.float32), 0.0))
        requests.slots.forget(["other"])
    assert requests.num_slots() == MOST


def test_too_many_stages_share_what_is_learned_from_all(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MOST_CASES", 9)  # two beyond those of any stage
    requests.run([3, 7], stage=WRITE)
    requests.run([3, 1], stage=CHECK)
    requests.draft("probe", 3, stage=CHECK)
    assert requests.num_slots() == 7
    requests.draft("next", 3, stage=WRITE)
    assert requests.num_slots("next") == 7


def test_one_step_of_several_requests(requests: Requests) -> None:
    names = [f"r{i}" for i in range(FEW)]
    for name in names:
        requests.slots.add(name, WRITE)
    acceptance = np.zeros((FEW + 1, MOST), np.float32)
    acceptance[:, :6] = 1
    requests.slots.learn(Drafted([*names, "stranger"], [6] * (FEW + 1), acceptance, PRICE))
    requests.slots.add("probe", WRITE)
    assert requests.num_slots() == 6


def test_ended_requests_are_forgotten(requests: Requests) -> None:
    requests.draft("r0", 2)
    requests.slots.forget(["r0", "stranger"])
    assert requests.slots.num_padded("r0", 5) == 0
    assert requests.num_slots("r0") == MOST


def test_padding_is_what_the_last_draft_leaves(requests: Requests) -> None:
    assert requests.slots.num_padded("r0", 5) == 0  # not known
    requests.slots.add("r0", WRITE)
    assert requests.slots.num_padded("r0", 5) == 0
    requests.draft("r0", 3)
    assert requests.slots.num_padded("r0", 5) == 2
    assert requests.slots.num_padded("r0", 2) == 0
