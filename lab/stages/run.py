"""``python -m lab stages``: measures and reports."""

from __future__ import annotations

from pathlib import Path

from agentspec.reporting.report import Announce, Report
from lab.stages import report
from lab.stages.measure import measure


def make_report(
    folder: Path | None, num_calls: int, num_variants: int, seed: int, announce: Announce
) -> Report:
    """Measure, and return the report.

    Raises:
        ConfigError: there are no traces in ``folder``, or the example's questions are missing.
    """
    figures = measure(folder, num_calls, num_variants, seed, announce)
    return Report(
        figures=figures,
        table=report.table(figures),
        origin={"arguments": {"calls": num_calls, "variants": num_variants, "seed": seed}},
        notes=report.notes(figures),
    )
