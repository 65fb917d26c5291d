"""``python -m benchmarks gpu``: a model of random weights says what was recorded, with drafts and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_vllm.support.forced import forced


@pytest.mark.slow  # model runner V2 has the same test, which is not
def test_every_output_is_the_recorded_one(tmp_path: Path) -> None:
    found = forced(tmp_path, "plain", "agentspec")
    assert {name: one["error"] for name, one in found.items()} == {"plain": None, "agentspec": None}
    for one in found.values():
        for load in one["loads"].values():
            assert (load["num_calls"], load["num_different"]) == (8, 0)
    assert found["plain"]["engine"]["method"] is None
    assert found["plain"]["loads"]["1"]["tokens_per_step"] == 1
    assert found["agentspec"]["engine"]["method"] == "custom_class"
    assert found["agentspec"]["loads"]["1"]["tokens_per_step"] > 1.2
    assert found["agentspec"]["loads"]["1"]["plugin"]["propose_us"]["steps"] > 0
