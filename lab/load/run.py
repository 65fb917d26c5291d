"""``python -m lab load``: measures and reports."""

from __future__ import annotations

from dataclasses import asdict

from agentspec.reporting.report import Announce, Report
from lab.load import report
from lab.load.measure import Sizes, measure


def make_report(sizes: Sizes, announce: Announce) -> Report:
    """Measure, and return the report.

    Raises:
        ConfigError: the example's questions are missing.
    """
    announce("reading the model and the questions")
    rounds = measure(sizes, announce)
    return Report(
        figures={"summary": report.summary(rounds), "figures": report.figures(rounds)},
        table=report.table(rounds),
        origin={"arguments": asdict(sizes)},
        notes=report.notes(rounds),
    )
