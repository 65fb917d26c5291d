"""``python -m benchmarks churn``: measures one scope after the other, then reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, json_line, make_room_for, publish
from benchmarks.churn import report
from benchmarks.churn.repeats import measure
from benchmarks.churn.scopes import SCOPES
from benchmarks.churn.sizes import Sizes
from benchmarks.churn.texts import load


def run(
    traces: Path, scopes: Sequence[str], sizes: Sizes, json_path: Path | None, plot_path: Path | None
) -> int:
    """Measure; print progress on stderr, then the table and the JSON line; return the exit status.

    Raises:
        ConfigError: there are no traces.
    """
    announce = announcer()
    announce("reading and tokenizing traces")
    datasets = load(traces, sizes.dataset_tokens)
    announce("tokens through budgets, each run in a fresh process")
    figures = {name: measure(SCOPES[name], datasets, sizes.of(SCOPES[name])) for name in scopes}
    for scope in scopes:
        if figures[scope]["oldest_first"] is None:
            announce(f"warning: {scope}: too few tokens for this budget to be reached, or far too many")
    announce("done")

    arguments = {"traces": traces.name, "scopes": list(scopes)}
    origin = {**provenance(), "arguments": arguments, "sizes": asdict(sizes)}
    line = json_line({"summary": report.summary(figures), "figures": figures}, origin)
    make_room_for(json_path, plot_path)
    if plot_path:
        report.plot(figures, plot_path)
    publish(report.table(figures), line, json_path)
    return 0
