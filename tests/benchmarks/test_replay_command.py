"""``agentspec replay`` from end to end, on the packaged tokenizer."""

from __future__ import annotations

import json

import pytest

from agentspec.benchmarks.replay.methods import METHODS
from agentspec.cli import REPLAY_METHODS, main

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


def test_the_report_is_a_table_markdown_and_a_line_of_json(calls, tmp_path, capsys):
    written = tmp_path / "out" / "replay.json"
    options = ["--jobs", "1", "--method", "forest", "--method", "pld", "--sessions", "2"]
    assert (
        main(["replay", str(calls), *options, "--json", str(written), "--markdown", str(tmp_path / "r.md")])
        == 0
    )
    shown, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
    assert written.read_text().strip() == last
    result = json.loads(last)
    forest, lookup = (result["figures"]["calls"][name]["all"] for name in ("forest", "pld"))
    assert result["summary"]["tokens_per_step"] == {
        "calls/forest": forest["tokens_per_step"],
        "calls/pld": lookup["tokens_per_step"],
    }
    assert forest["tokens"] == lookup["tokens"]
    assert forest["tokens_per_step"] > lookup["tokens_per_step"]
    assert "| forest | sql |" in (tmp_path / "r.md").read_text()
    assert "calls: forest does best" in shown
    assert "| stage | entropy, bits |" in (tmp_path / "r.md").read_text()
    assert result["advice"]["calls"]["stages"]["sql"]["tokens_per_step"] == forest["tokens_per_step"]
    assert result["advice"]["calls"]["stages"]["sql"]["entropy_bits"] > 0


def test_every_method_has_a_name_in_the_help():
    assert set(REPLAY_METHODS) == set(METHODS)


def test_what_can_not_be_replayed_is_an_error(calls, tmp_path, capsys):
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    calls.write_text('{"prompt": "p"}')
    assert main(["replay", str(calls), "--jobs", "1"]) == 1
    assert "calls.jsonl:1" in capsys.readouterr().err
