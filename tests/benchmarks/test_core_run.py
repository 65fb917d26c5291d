"""The whole core benchmark on a tiny trace, and its command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.reporting.report import Outputs, run
from benchmarks.command import main
from benchmarks.core.run import make_report
from benchmarks.core.sides import peer_side
from benchmarks.core.sizes import Sizes

EVERY_SIDE = {"ours", "ours_every_source", "ours_learned", "ours_1_thread", "ours_2_threads"}


def test_with_the_peer(traces: Path, tiny: Sizes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        peer = peer_side("arctic")
    except ConfigError as error:
        pytest.skip(str(error))
    path = tmp_path / "new" / "core.json"
    outputs = Outputs(json=path, plot=tmp_path / "core.png")
    assert run(lambda announce: make_report(traces, "arctic", tiny, announce), outputs) == 0
    printed = capsys.readouterr().out.splitlines()
    assert path.read_text() == printed[-1] + "\n"
    assert (tmp_path / "core.png").exists()
    told = json.loads(printed[-1])
    assert all(isinstance(value, float) for value in told["summary"].values())
    assert set(told["figures"]["step_ms_b256"]) == {*EVERY_SIDE, "peer"}
    drafted = told["figures"]["drafted_per_request_b256"]
    assert drafted["ours_1_thread"] == drafted["ours_2_threads"] > 0
    assert 0 < told["figures"]["agreed_per_request_b256"]["ours"] <= min(drafted["ours"], drafted["peer"])
    assert told["provenance"]["peer"] == peer.version


@pytest.mark.slow
@pytest.mark.usefixtures("without_peer")
def test_without_the_peer(traces: Path, tiny: Sizes, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda announce: make_report(traces, "arctic", tiny, announce), Outputs()) == 0
    printed = capsys.readouterr()
    assert "make bench-peer" in " ".join(printed.err.split())
    told = json.loads(printed.out.splitlines()[-1])
    measured = {key for key, value in told["summary"].items() if value is not None}
    assert measured == {"threads2_speedup_b256", "threads2_drafted_ratio_b256", "ingest_in_step_ms_32k"}
    assert set(told["figures"]["step_ms_b64"]) == EVERY_SIDE
    assert told["provenance"]["peer"] is None


@pytest.mark.parametrize("command", [[], ["core"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    assert "core" in capsys.readouterr().out


def test_a_folder_without_traces_is_an_error_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["core", "--traces", str(tmp_path), "--peer", "none"]) == 1
    assert "error: no traces" in capsys.readouterr().err
