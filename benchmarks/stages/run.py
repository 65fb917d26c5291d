"""``python -m benchmarks stages``: measure, then the report."""

from __future__ import annotations

from pathlib import Path

from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, json_line, make_room_for, publish
from benchmarks.stages import report
from benchmarks.stages.measure import measure


def run(folder: Path | None, num_calls: int, seed: int, json_path: Path | None) -> int:
    """Measure; print progress on stderr, the table and, as the last line, the JSON; the exit status.

    Raises:
        ConfigError: there are no traces in ``folder``, or the example's questions are not there.
    """
    make_room_for(json_path)
    announce = announcer()
    figures = measure(folder, num_calls, seed, announce)
    announce("done")
    line = json_line(figures, {**provenance(), "arguments": {"calls": num_calls, "seed": seed}})
    publish(report.table(figures), line, json_path, report.notes(figures))
    return 0
