"""``python -m lab paper``: runs all sections, then writes figures, plots and the document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.reporting import plots
from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, rounded
from lab.paper import document, fig2, fig4, fig7, fig8, fig9, live, table1
from lab.paper.runs import Run, Texts, done
from lab.paper.samples import LABELS, Traces
from lab.paper.section import Section

SECTIONS: tuple[Section, ...] = tuple(part.SECTION for part in (fig2, fig4, fig7, fig8, fig9, table1, live))
COMMAND = "make paper TRACES=DIR"

Measured = dict[str, Any]  # by section, and the data sets as "data"


def run(folder: Path, docs: Path, only: Sequence[str], limit: int | None, num_processes: int) -> int:
    """Measure, write paper.md, its plots and all figures, and return the exit status.

    Args:
        folder: folder of the recorded calls.
        docs: folder of paper.md; other files are written into its folder ``paper``.
        only: names of sections; figures of the others stay unchanged. If empty, all are measured.
        limit: maximum number of calls of each data set.

    Raises:
        ConfigError: data sets are missing or unreadable, or unchanged sections were measured with another
            limit.
    """
    announce = announcer()
    announce("reading traces")
    traces = Traces(folder, limit)
    store = docs / "paper" / "figures.json"
    measured = _stored(store) if only else {}
    _check_limit(measured, limit)
    measured |= measure(traces, [one for one in SECTIONS if not only or one.name in only], num_processes)
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    write(docs, measured)
    announce(f"wrote {docs / 'paper.md'}")
    return 0


def measure(traces: Traces, sections: Sequence[Section], num_processes: int) -> Measured:
    """Return figures by section, and of the data, each with provenance; equal runs are done once."""
    runs: list[Run] = [Texts(traces.sample(name)) for name in LABELS]
    for section in sections:
        runs += section.runs(traces)
    outcomes = done(runs, num_processes)
    figures = {section.name: section.figures(traces, outcomes) for section in sections}
    figures["data"] = {name: outcomes[Texts(traces.sample(name))] for name in LABELS}
    origin = {**provenance(), "limit": traces.limit}
    return {name: {"figures": rounded(one), "provenance": origin} for name, one in figures.items()}


def write(docs: Path, measured: Measured) -> None:
    """Write the document and its plots, for all sections that were measured."""
    figures = {name: one["figures"] for name, one in measured.items()}
    for section in SECTIONS:
        if section.name in figures:
            for name, plot in section.plots(figures[section.name]).items():
                plots.save(plot, docs / "paper" / f"{name}.svg")
    text = document.document(SECTIONS, figures, COMMAND, measured["data"]["provenance"]["limit"])
    (docs / "paper.md").write_text(text, encoding="utf-8")


def _check_limit(stored: Measured, limit: int | None) -> None:
    """Check that all figures of a document have the same limit."""
    for name, one in stored.items():
        if one["provenance"]["limit"] != limit:
            kept = one["provenance"]["limit"]
            raise ConfigError(
                f"section {name!r} was measured with limit {kept}, not {limit}: measure all, or give --docs"
            )


def _stored(path: Path) -> Measured:
    """Return the figures measured before, if any."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
