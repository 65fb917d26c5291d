"""``python -m benchmarks gpu`` with model runner V2: drafts come late, and forced positions are right."""

from __future__ import annotations

from pathlib import Path

from tests.real_vllm.support.forced import forced


def test_every_output_is_the_recorded_one(tmp_path: Path) -> None:
    found = forced(tmp_path, "agentspec")["agentspec"]
    assert found["error"] is None
    assert (found["engine"]["model_runner"], found["engine"]["async_scheduling"]) == ("V2", True)
    for load in found["loads"].values():
        assert (load["num_calls"], load["num_different"]) == (8, 0)
    assert found["loads"]["1"]["tokens_per_step"] > 1.2
