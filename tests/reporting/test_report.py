from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.table import Table

from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce, Outputs, Report, run


def plot(path: Path) -> None:
    path.write_text("a plot")


def report(announce: Announce) -> Report:
    announce("measuring")
    return Report(
        figures={"seconds": {"all": 1.23456}},
        table=Table("a column", title="a title"),
        origin={"arguments": {"size": 3}},
        notes=["a note"],
        plot=plot,
        markdown=lambda: "# A report\n",
    )


def not_called(announce: Announce) -> Report:
    raise AssertionError("the outputs are checked first")


def test_a_run_writes_all_files_and_ends_with_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = Outputs(
        json=tmp_path / "a" / "x.json", plot=tmp_path / "b" / "x.svg", markdown=tmp_path / "c" / "x.md"
    )
    assert run(report, outputs) == 0
    printed = capsys.readouterr()
    assert "measuring" in printed.err
    *shown, last = printed.out.splitlines()
    assert (shown[0].strip(), shown[-1]) == ("a title", "a note"), shown
    line = json.loads(last)
    assert line["seconds"] == {"all": 1.235}
    assert line["provenance"]["arguments"] == {"size": 3}
    assert "machine" in line["provenance"]
    assert [path.read_text() for path in (outputs.json, outputs.plot, outputs.markdown) if path] == [
        last + "\n",
        "a plot",
        "# A report\n",
    ]


def test_a_file_that_can_not_be_written_afterwards_does_not_cost_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(announce: Announce) -> Report:
        (tmp_path / "results").touch()  # where there was to be a folder
        return report(announce)

    with pytest.raises(ConfigError, match=r"results' can't be written: File exists"):
        run(measure, Outputs(json=tmp_path / "results" / "x.json"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["seconds"] == {"all": 1.235}


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ({"plot": "new/x.gif"}, r"ends with \.png or \.svg, not 'x\.gif'"),
        ({"json": "folder"}, "is a folder: name a file"),
        ({"json": "file/x.json"}, "is no folder"),
        ({"markdown": "file/new/x.md"}, "is no folder"),
    ],
)
def test_a_name_that_can_not_be_written_is_refused_before_the_measurement(
    outputs: dict[str, str], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=problem):
        run(not_called, Outputs(**{name: tmp_path / path for name, path in outputs.items()}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_run_that_fails_makes_no_folder(tmp_path: Path) -> None:
    def failing(announce: Announce) -> Report:
        raise ConfigError("no traces")

    with pytest.raises(ConfigError, match="no traces"):
        run(failing, Outputs(json=tmp_path / "new" / "x.json"))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_status_1() -> None:
    assert run(lambda announce: Report(figures={}, table=Table(), origin={}, is_failure=True), Outputs()) == 1
