"""``python -m lab churn``: measures one scope after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentspec.reporting.report import Announce, Report
from lab.churn import report
from lab.churn.repeats import measure
from lab.churn.scopes import SCOPES
from lab.churn.sizes import Sizes
from lab.churn.texts import load


def make_report(traces: Path, scopes: Sequence[str], sizes: Sizes, announce: Announce) -> Report:
    """Measure, and return the report.

    Raises:
        ConfigError: there are no traces.
    """
    announce("reading and tokenizing traces")
    datasets = load(traces, sizes.dataset_tokens)
    announce("tokens through budgets, each run in a fresh process")
    figures = {name: measure(SCOPES[name], datasets, sizes.of(SCOPES[name])) for name in scopes}
    for scope in scopes:
        if figures[scope]["oldest_first"] is None:
            announce(f"warning: {scope}: too few tokens for this budget to be reached, or far too many")
    return Report(
        figures={"summary": report.summary(figures), "figures": figures},
        table=report.table(figures),
        origin={"arguments": {"traces": traces.name, "scopes": list(scopes)}, "sizes": asdict(sizes)},
        plot=lambda path: report.plot(figures, path),
    )
