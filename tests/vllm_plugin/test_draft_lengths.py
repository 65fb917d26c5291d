from __future__ import annotations

import pytest

from agentspec.vllm_plugin.draft_lengths import FEW, WINDOW, DraftLengths

MOST = 15


@pytest.fixture
def lengths() -> DraftLengths:
    return DraftLengths(MOST)


def test_a_request_without_a_known_draft_gets_all_slots(lengths: DraftLengths) -> None:
    assert lengths.num_slots("r0") == MOST


def test_before_anything_is_learned_the_last_length_counts(lengths: DraftLengths) -> None:
    lengths.learn({"r0": 4, "r1": 0, "r2": 99})
    assert [lengths.num_slots(name) for name in ("r0", "r1", "r2")] == [4, 0, MOST]


def test_the_last_slot_is_filled_often_enough(lengths: DraftLengths) -> None:
    for length in [*[0, 10, 0, 10, 0, 2] * 20, 0]:  # after 0 there is 10 in half of the cases at least
        lengths.learn({"r0": length})
    assert lengths.num_slots("r0") == 10
    for length in [0] * WINDOW * 4:
        lengths.learn({"r0": length})
    assert lengths.num_slots("r0") == 0  # the past fades


def test_one_request_learns_for_another(lengths: DraftLengths) -> None:
    for _ in range(FEW):
        lengths.learn({"r0": 3})
        lengths.learn({"r0": 7})
    lengths.learn({"r1": 3})
    assert lengths.num_slots("r1") == 7


def test_the_length_before_distinguishes_cases(lengths: DraftLengths) -> None:
    for before, after in ((0, 2), (15, 15)):
        for i in range(2 * FEW):
            name = f"r{before}-{i}"
            for length in (before, 6, after):
                lengths.learn({name: length})
    for before, after in ((0, 2), (15, 15)):
        lengths.learn({"probe": before})
        lengths.learn({"probe": 6})
        assert lengths.num_slots("probe") == after
        lengths.forget(["probe"])


def test_ended_requests_are_forgotten(lengths: DraftLengths) -> None:
    lengths.learn({"r0": 0})
    lengths.forget(["r0", "stranger"])
    assert lengths.num_slots("r0") == MOST


def test_padding_is_what_the_last_draft_leaves(lengths: DraftLengths) -> None:
    assert lengths.num_padded("r0", 5) == 0  # not known
    lengths.learn({"r0": 3})
    assert lengths.num_padded("r0", 5) == 2
    assert lengths.num_padded("r0", 2) == 0
