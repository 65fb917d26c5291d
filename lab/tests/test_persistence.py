"""The command measures the cost of saving and loading a forest, also during live requests."""

from __future__ import annotations

import json

from benchmarks.core import sizes
from lab.command import main
from lab.persistence import run as persistence


def test_the_whole_run(traces, tiny, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "FULL", tiny)
    monkeypatch.setattr(persistence, "ALONE_S", 0.1)
    monkeypatch.setattr(persistence, "NUM_LIVE", 4)
    assert main(["persistence", "--traces", str(traces)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    rows = [line.split()[1] for line in table if line.startswith("│ ")]
    assert [row for row in rows if row != "│"] == [*figures][:-1]
    held = figures["forest"]
    assert held["num_trees"] == 6  # four stages, the workflow, the tenant
    assert held["num_tokens"] % 3 == 0
    assert held["num_tokens"] >= 3 * tiny.corpus_tokens
    assert figures["steps_alone"]["num_steps"] > 0
    for wait in (figures["wait_for_save"], figures["wait_for_load"]):
        assert 0 < wait["ms_median"] <= wait["ms_p99"] <= wait["ms_max"]
