"""``python -m benchmarks load``: measures and reports."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, make_room_for, publish
from benchmarks.load import report
from benchmarks.load.measure import Sizes, measure


def run(sizes: Sizes, json_path: Path | None) -> int:
    """Measure; print progress on stderr, then the table and the JSON line; return the exit status.

    Raises:
        ConfigError: the example's questions are missing.
    """
    announce = announcer()
    announce("reading the model and the questions")
    rounds = measure(sizes, announce)
    announce("done")
    line = report.json_line(rounds, {**provenance(), "arguments": asdict(sizes)})
    make_room_for(json_path)
    publish(report.table(rounds), line, json_path, report.notes(rounds))
    return 0
