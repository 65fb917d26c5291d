"""``agentspec replay`` from end to end, with the packaged tokenizer."""

from __future__ import annotations

import json

import pytest

from agentspec.cli import main
from agentspec.commands import replay as command
from agentspec.replay import jobs
from agentspec.replay.methods import METHODS

CALLS = [
    {
        "prompt": f"question {i}",
        "response": f"SELECT name FROM users WHERE id = {i};",
        "stage": "sql",
        "session": str(i),
    }
    for i in range(8)
]


@pytest.fixture
def calls(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("\n".join(map(json.dumps, CALLS)))
    return path


def test_the_report_is_a_table_markdown_and_where_asked_json(calls, tmp_path, capsys):
    written = tmp_path / "out" / "replay.json"
    options = ["--jobs", "1", "--method", "forest", "--method", "pld", "--sessions", "2"]
    assert (
        main(["replay", str(calls), *options, "--json", str(written), "--markdown", str(tmp_path / "r.md")])
        == 0
    )
    shown = capsys.readouterr().out
    assert '"summary"' not in shown
    result = json.loads(written.read_text())
    forest, lookup = (result["figures"]["calls"][name]["all"] for name in ("forest", "pld"))
    assert result["summary"]["tokens_per_step"] == {
        "calls/forest": forest["tokens_per_step"],
        "calls/pld": lookup["tokens_per_step"],
    }
    assert forest["tokens"] == lookup["tokens"]
    assert forest["tokens_per_step"] > lookup["tokens_per_step"]
    assert "| forest | sql |" in (tmp_path / "r.md").read_text()
    assert "calls: these 8 calls: " in shown
    assert "forest has " in shown
    assert "all files: " not in shown
    assert result["advice"]["calls"]["by_row_cost"]["0.01"]["price"] in (None, 0.02)
    assert "| stage | tokens/step |" in (tmp_path / "r.md").read_text()
    assert result["advice"]["calls"]["stages"]["sql"]["tokens_per_step"] >= forest["tokens_per_step"]


def test_every_method_has_a_name_in_the_help():
    assert set(command.METHODS) == set(METHODS)


def test_what_can_not_be_replayed_is_an_error(calls, tmp_path, capsys):
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    calls.write_text('{"prompt": "p"}')
    assert main(["replay", str(calls), "--jobs", "1"]) == 1
    assert "calls.jsonl:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-prob", "1.5"], "min_prob"),
        (["--alpha", "-1"], "alpha"),
        (["--method", "pld", "--alpha", "-1"], "alpha"),
        (["--tokenizer", "none"], "none"),
        (["--json", "calls.jsonl/out.json"], "is no folder"),
        (["--half", "first"], "in its first half"),
        (["--json", "calls.jsonl"], "'calls.jsonl' can't be written: it is an input"),
        (["--plot", "same.svg", "--json", "x/../same.svg"], "two outputs have this name"),
    ],
)
def test_what_is_wrong_is_found_before_the_work(calls, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "share_out", lambda *_: pytest.fail("the work has begun"))
    calls.write_text(json.dumps(CALLS[0]))
    assert main(["replay", str(calls), *options]) == 1
    assert message in capsys.readouterr().err


def test_an_empty_log_is_refused_by_its_name(calls, capsys):
    calls.write_text("\n")
    assert main(["replay", str(calls)]) == 1
    assert f"there are no calls in '{calls}'" in capsys.readouterr().err
    calls.write_text(json.dumps({**CALLS[0], "response": ""}))
    assert main(["replay", str(calls)]) == 1
    assert f"no call in '{calls}' has a response" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(calls, tmp_path, capsys, monkeypatch, columns):
    long = tmp_path / "calls-of-a-pipeline-with-a-very-long-name.jsonl"
    long.write_text(calls.read_text())
    monkeypatch.setenv("COLUMNS", str(columns))
    options = ["--jobs", "1", "--method", "paper-shared", "--method", "pld"]
    assert main(["replay", str(long), *options]) == 0
    table = capsys.readouterr().out.split("\n" + long.stem)[0]
    assert max(map(len, table.splitlines())) <= columns
    assert "paper-shared" in table
    assert "…" not in table


def test_several_files_have_an_answer_together(calls, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text(calls.read_text())
    written = tmp_path / "out.json"
    table = tmp_path / "out.md"
    options = ["--jobs", "1", "--method", "pld", "--json", str(written), "--markdown", str(table)]
    assert main(["replay", str(calls), str(other), *options]) == 0
    assert "\nall files: these 16 calls: " in capsys.readouterr().out
    assert "## all files\n\nthese 16 calls: " in table.read_text()
    advice = json.loads(written.read_text())["advice"]
    assert (advice["all files"]["num_calls"], set(advice["all files"]["stages"])) == (
        16,
        {"calls/sql", "other/sql"},
    )


def test_progress_is_said_where_there_is_no_bar(calls, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "REPORT_EVERY_S", 0.0)
    assert main(["replay", str(calls), "--jobs", "1", "--method", "pld"]) == 0
    assert "8 of 8 calls, 0 minutes left" in capsys.readouterr().err


def test_what_was_counted_is_drawn(calls, tmp_path, capsys):
    again = tmp_path / "again.jsonl"
    again.write_text(calls.read_text())
    for name in ("replay.svg", "replay.png"):
        options = [
            "--jobs",
            "1",
            "--method",
            "learned",
            "--method",
            "pld",
            "--plot",
            str(tmp_path / "out" / name),
        ]
        assert main(["replay", str(calls), str(again), *options]) == 0
    drawn = (tmp_path / "out" / "replay.svg").read_text()
    for text in ("calls", "again", "pld", "tokens per step", "draft tokens per step", "by match length"):
        assert f">{text}<" in drawn or text in drawn
    assert (tmp_path / "out" / "replay.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["replay", str(calls), "--plot", str(tmp_path / "replay.jpeg")]) == 1
    assert "'replay.jpeg'" in capsys.readouterr().err


def test_where_accepted_tokens_came_from_is_in_the_markdown(calls, tmp_path):
    written = tmp_path / "r.md"
    assert (
        main(["replay", str(calls), "--jobs", "1", "--method", "paper-stage", "--markdown", str(written)])
        == 0
    )
    rows = [line.strip("| ").split(" | ") for line in written.read_text().splitlines()]
    [headings] = [row for row in rows if "workflow" in row]
    [cells] = [row for row in rows if row[0] == "paper-stage" and len(row) == len(headings)]
    shares = dict(zip(headings, cells, strict=True))
    assert [shares[tree] for tree in ("session", "workflow", "tenant")] == ["-", "-", "-"]
    assert int(shares["request"].strip("%")) + int(shares["stage"].strip("%")) == 100


def test_two_files_of_one_name_are_refused(calls, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "calls.jsonl"
    other.write_text(calls.read_text())
    assert main(["replay", str(calls), str(other)]) == 1
    refused = capsys.readouterr().err
    assert str(calls) in refused
    assert str(other) in refused


def test_names_that_differ_in_a_dot_are_kept_apart(calls, tmp_path):
    (tmp_path / "calls.v2.jsonl").write_text(calls.read_text())
    written = tmp_path / "out.json"
    assert main(["replay", str(tmp_path), "--jobs", "1", "--method", "pld", "--json", str(written)]) == 0
    result = json.loads(written.read_text())
    assert list(result["figures"]) == ["calls", "calls.v2"]
