"""The whole benchmark, tiny: every part with real processes, and the file that collects the parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.reporting.report import Outputs
from benchmarks.gateway.options import PARTS
from benchmarks.gateway.run import run
from benchmarks.gateway.sizes import Sizes

TINY = Sizes(
    num_rounds=1,
    rate_per_s=20,
    num_beside=4,
    latency_s=0.5,
    warm_up_s=0.2,
    num_clients=2,
    throughput_s=0.3,
    num_chunk_streams=4,
    num_chunks=8,
    soak_minutes=0.02,
    soak_warm_up_minutes=0.005,
    soak_rate_per_s=30,
)


@pytest.mark.slow
def test_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "results" / "gateway.json", tmp_path / "added.png"
    assert run(PARTS[:2], TINY, None, Outputs(json=path, plot=picture)) == 0
    assert set(json.loads(path.read_text())["parts"]) == set(PARTS[:2])
    assert run(PARTS[2:], TINY, None, Outputs(json=path)) == 0
    written = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == written
    assert picture.read_bytes().startswith(b"\x89PNG")
    parts, summary = written["parts"], written["summary"]
    assert set(parts) == set(PARTS)
    assert all("uvloop" in part["provenance"]["packages"] for part in parts.values())
    assert {name for name, value in summary.items() if value is None} == {
        "litellm_added_ms_p50",
        "litellm_req_per_s_core",
    }
    assert {name: part["num_errors"] for name, part in parts.items()} == dict.fromkeys(PARTS, 0)
    assert parts["soak"]["num_changed"] == 0
    assert sum(parts["soak"]["requests"].values()) == parts["soak"]["num_requests"] == 36
