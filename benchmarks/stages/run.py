"""``python -m benchmarks stages``: measures and reports."""

from __future__ import annotations

from pathlib import Path

from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, json_line, make_room_for, publish
from benchmarks.stages import report
from benchmarks.stages.measure import measure


def run(folder: Path | None, num_calls: int, seed: int, json_path: Path | None) -> int:
    """Measure; print progress on stderr, then the table and the JSON line; return the exit status.

    Raises:
        ConfigError: there are no traces in ``folder``, or the example's questions are missing.
    """
    make_room_for(json_path)
    announce = announcer()
    figures = measure(folder, num_calls, seed, announce)
    announce("done")
    line = json_line(figures, {**provenance(), "arguments": {"calls": num_calls, "seed": seed}})
    publish(report.table(figures), line, json_path, report.notes(figures))
    return 0
