"""The example with OpenHands' own tools. Its model is the recorded-session engine of another environment."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from examples.openhands.__main__ import main
from examples.openhands.author import record
from examples.openhands.figures import rows, since
from examples.openhands.task import tasks
from examples.openhands.workspace import ROOT, fresh, judged, results_of, sandbox

ENGINE_PYTHON = Path(
    os.environ.get("AGENTSPEC_ENGINE_PYTHON") or Path(__file__).parents[3] / ".venv" / "bin" / "python"
)
STAGES = ["repair/agent", "repair/agent/condenser", "repair/reviewer"]

needs_engine = pytest.mark.skipif(
    not ENGINE_PYTHON.exists(), reason="no Python with agentspec-serving[engine]: set AGENTSPEC_ENGINE_PYTHON"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """Do all tasks with the written answers, and record them."""
    file = tmp_path_factory.mktemp("record") / "record.jsonl"
    with sandbox():
        repairs = record(tasks(), file)
    return repairs, file


def test_every_repository_has_a_bug_that_tests_find() -> None:
    with sandbox():
        for task in tasks():
            passed = results_of(fresh(task))
            assert 0 < sum(passed.values()) < len(passed)
            assert judged(task, ROOT / task.name) == passed


@pytest.mark.slow
def test_what_is_written_repairs_every_repository(recorded: tuple[list[Any], Path]) -> None:
    repairs, file = recorded
    assert len(repairs) >= 5
    for repair in repairs:
        assert not all(repair.before.values())
        assert repair.is_repaired
    calls = [json.loads(line) for line in file.read_text().splitlines()]
    stages = Counter(call["stage"] for call in calls)
    assert sorted(stages) == STAGES
    assert stages["repair/agent"] == sum(len(repair.outputs) for repair in repairs)
    assert stages["repair/reviewer"] == 3 * len(repairs)


def test_no_shell_in_a_folder_that_leads_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "root").symlink_to(there)
    monkeypatch.setattr("examples.openhands.workspace.ROOT", tmp_path / "root")
    with pytest.raises(ConfigError, match="made by somebody else"), sandbox():
        pass
    assert list(there.iterdir()) == []


def test_tests_that_an_agent_has_changed_do_not_count() -> None:
    (task,) = tasks(["text-wrap"])
    with sandbox():
        folder = fresh(task)
        before = results_of(folder)
        (folder / "test_wrapping.py").write_text("")
        assert judged(task, folder) == before


@needs_engine
@pytest.mark.slow
def test_two_tasks_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "line.json"
    options = ["--task", "interval-merge", "--task", "text-wrap", "--json", str(file)]
    assert main([*options, "--server-python", str(ENGINE_PYTHON)]) == 0
    line = json.loads(file.read_text())
    assert line["summary"]["num_repaired"] == 2
    assert line["summary"]["outputs_identical"] is True
    assert line["summary"]["accepted_per_step"] > 1.5
    assert sorted(line["stages"]) == ["all", *STAGES]
    assert "identical" in capfd.readouterr().out


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--task", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().out
    assert main(["--url", "http://127.0.0.1:9/v1"]) == 2
    assert "'http://127.0.0.1:9/v1'" in capsys.readouterr().out
    with sandbox():
        assert main([]) == 2
    assert "another run" in capsys.readouterr().out


def test_figures_are_differences() -> None:
    before = {"a": {"requests": 1.0, "output_tokens": 10.0}, "b": {"requests": 2.0}}
    now = {
        "a": {
            "requests": 3.0,
            "output_tokens": 112.0,
            "decode_steps": 50.0,
            "decode_seconds": 1.0,
            "accepted_tokens": 50.0,
            "draft_tokens": 60.0,
            "draft_tokens_by_source:stage": 60.0,
        },
        "b": {"requests": 2.0},
    }
    row, whole = rows(
        since(before, now), {"a": {"requests": 2.0, "output_tokens": 102.0, "decode_seconds": 2.0}}
    )
    assert (row.stage, whole.stage, row.calls, row.output_tokens) == ("a", "all", 2, 102)
    assert (row.accepted_per_step, row.speedup, row.share("stage")) == (2.0, 2.0, 1.0)
