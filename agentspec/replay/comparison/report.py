"""The comparison as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from agentspec.replay.comparison.compare import ROWS, Figures, Row
from agentspec.reporting.report import verdict

PLAIN = ("num_calls", "num_tokens", "one_tree_bytes", "limit_bytes")


def table(by_half: Mapping[str, Figures]) -> Table:
    """Return a row for each bar, with each half's result and its worst data set."""
    shown = Table(title="learned against the paper's rule", title_justify="left")
    shown.add_column("", no_wrap=True)
    shown.add_column("bar", justify="right", no_wrap=True)
    for half in by_half:
        shown.add_column(f"{half} half", justify="right", no_wrap=True)
        shown.add_column("")
        shown.add_column("worst")
    for row in ROWS:
        cells = [cell for figures in by_half.values() for cell in _cells(row, figures)]
        shown.add_row(row.label, f"{row.sign} {row.bar:.3g}", *cells)
    return shown


def _cells(row: Row, figures: Figures) -> tuple[str, str, str]:
    return _shown(row.result(figures)), verdict(row.passes(figures)), row.worst(figures)


def markdown(by_half: Mapping[str, Figures]) -> str:
    """Return a Markdown table for each half, with a row for each data set."""
    names = list(dict.fromkeys(row.figure for row in ROWS))
    lines = []
    for half, figures in by_half.items():
        lines += [f"## {half} half", "", f"| calls of | {' | '.join((*names, *PLAIN))} |"]
        lines += ["|---" + "|--:" * len((*names, *PLAIN)) + "|"]
        for data_set, one in figures.items():
            cells = [_shown(one[name]) for name in names] + [f"{one[name]:,}" for name in PLAIN]
            lines.append(f"| {data_set} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.3f}"
