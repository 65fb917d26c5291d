from __future__ import annotations

import pytest

from agentspec.vllm_plugin.advice import advice, bitmask_bytes, recurrent_states

QWEN = 151_936  # words of the vocabulary


def given(version: tuple[int, int] = (0, 33), drafts: int = 32, **values: int) -> list[str]:
    return advice(version, drafts, **{"is_hybrid": False, "vocab_size": QWEN, "num_workers": 1, **values})


def test_most_servers_need_none() -> None:
    assert given() == given((0, 32), num_workers=8) == []


@pytest.mark.parametrize(("drafts", "is_long"), [(3, False), (7, False), (8, True), (32, True)])
def test_long_drafts_of_a_model_with_recurrent_layers(drafts: int, is_long: bool) -> None:
    found = given(drafts=drafts, is_hybrid=True)
    assert len(found) == is_long
    assert all(f"keeps {drafts + 1} states" in line and "7 or less" in line for line in found)


@pytest.mark.parametrize(
    ("version", "drafts", "num_workers", "is_slow"),
    [
        ((0, 33), 32, 2, True),
        ((0, 33), 15, 2, False),
        ((0, 33), 32, 1, False),  # no other process gets the masks
        ((0, 32), 32, 2, False),  # rows for the draft tokens of the step alone
        ((1, 0), 16, 8, True),
    ],
)
def test_masks_of_structured_output(
    version: tuple[int, int], drafts: int, num_workers: int, is_slow: bool
) -> None:
    found = given(version, drafts, num_workers=num_workers)
    assert len(found) == is_slow
    assert not is_slow or drafts != 32 or "38 MiB a step at 64 requests" in found[0]


def test_the_arithmetic() -> None:
    assert recurrent_states(32) == 33
    assert bitmask_bytes(1, 0, 32) == bitmask_bytes(1, 0, 1) == 4
    assert bitmask_bytes(64, 32, 128_256) == 64 * 33 * 128_256 // 8
    assert bitmask_bytes(1, 1, 33) == 2 * 8
