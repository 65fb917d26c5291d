"""The figures as a table and as a plot."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from agentspec.reporting import report
from benchmarks.core.bars import ROWS, Figures, Kind, Row

BATCH_SIZES = (1, 16, 64, 256)
BARS = {Kind.SPEEDUP: "≥ ", Kind.SHARE: "≤ ", Kind.VALUE: "≤ ", Kind.ALIKE: "1 ± "}
SIDES = {
    "peer": "{peer}",
    "ours_every_source": "ours, every source",
    "ours_learned": "ours, learned rule",
    "ours": "ours",
    "ours_2_threads": "ours, 2 threads",
}


def table(figures: Figures, peer: str | None) -> Table:
    """Return a table with one row per comparison."""
    result = Table(title=f"agentspec against {peer or 'no peer'}: medians", title_justify="left")
    result.add_column("", no_wrap=True)
    for heading in ("ours", "peer", "result", "bar", ""):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in ROWS:
        if row.figure in figures:
            result.add_row(*_cells(row, figures))
    return result


def _cells(row: Row, figures: Figures) -> list[str]:
    against = _shown(row.theirs(figures))
    if row.against_label:
        against = f"{row.against_label}: {against}"
    bar = ""
    if row.bar is not None:
        bar = BARS[row.kind] + _result(row.kind, row.bar)
    return [
        row.label,
        _shown(row.ours(figures)),
        against,
        _result(row.kind, row.result(figures)),
        bar,
        report.verdict(row.passes(figures)),
    ]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _result(kind: Kind, result: float | None) -> str:
    if result is None:
        return "-"
    if kind is Kind.SPEEDUP:
        return f"{result:.3g}x"
    return f"1/{1 / result:.3g}" if kind is Kind.SHARE and 0 < result < 0.9 else f"{result:.3g}"


def plot(figures: Figures, peer: str | None, path: Path) -> None:
    """Plot the time of a decode step against the number of live requests."""
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    steps = {size: figures[f"step_ms_b{size}"] for size in BATCH_SIZES if f"step_ms_b{size}" in figures}
    for side, label in SIDES.items():
        points = [(size, by_side[side]["median"]) for size, by_side in steps.items() if side in by_side]
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", label=label.format(peer=peer))
    axes.set(xlabel="live requests", ylabel="decode step, ms", title="4 tokens in, a draft out, per request")
    axes.set_xticks(list(steps), [str(size) for size in steps])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
