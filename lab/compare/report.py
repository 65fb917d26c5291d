"""The comparison as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table

from agentspec.reporting.report import verdict
from lab.compare.compare import ROWS, Figures

PLAIN = ("num_calls", "num_tokens", "one_tree_bytes", "limit_bytes")


def table(by_half: Mapping[str, Figures]) -> Table:
    """Return a row for each bar and half, with the result and the worst data set. It fits 80 columns."""
    shown = Table(title="learned against the paper's rule", title_justify="left", box=box.SIMPLE)
    shown.add_column("", min_width=24)
    shown.add_column("bar", justify="right", no_wrap=True)
    shown.add_column("half", no_wrap=True)
    shown.add_column("result", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("worst", overflow="fold")
    for row in ROWS:
        label, bar = row.label, f"{row.sign} {row.bar:.3g}"
        for half, figures in by_half.items():
            result = _shown(row.result(figures))
            shown.add_row(label, bar, half, result, verdict(row.passes(figures)), row.worst(figures))
            label = bar = ""
    return shown


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
