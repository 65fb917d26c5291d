"""The figures as a table, as a summary and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from agentspec.benchmarks import report
from agentspec.benchmarks.churn.meter import LIMIT_MS
from agentspec.benchmarks.churn.scopes import SCOPES
from agentspec.benchmarks.churn.sizes import Sizes

ByScope = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of every scope.

    Attributes:
        label: what it is, for the table.
        figure: its name among a scope's figures.
        bar: it must not exceed this; True: it must be true.
    """

    label: str
    figure: str
    bar: float | None = None

    def passes(self, figures: ByScope) -> bool | None:
        """Whether all measured scopes meet the bar; None if there is none, or nothing was measured."""
        measured = _measured(figures, self.figure)
        if self.bar is None or not measured:
            return None
        return all(measured) if self.bar is True else bool(max(measured) <= self.bar)


ROWS = (
    Row("RSS above the baseline / budget, most", "rss_max_ratio", 1.1),
    Row("memory_bytes / budget, most", "memory_max_ratio", 1.0),
    Row("slowest call, ms of CPU time", "slowest_call_ms", LIMIT_MS),
    Row(f"  calls of {LIMIT_MS:g} ms or more", "calls_over_limit"),
    Row("  runs that was the least of", "num_runs"),
    Row("  slowest call of a single run", "slowest_call_single_ms"),
    Row("  median decode step", "median_step_ms"),
    Row("slowest call, ms of wall time", "slowest_call_wall_ms"),
    Row(f"  calls of {LIMIT_MS:g} ms or more", "calls_over_limit_wall"),
    Row("  99.9 % of calls are no longer than", "p99.9_wall_ms"),
    Row("slowest withdrawal, ms of CPU time", "slowest_withdrawal_ms"),
    Row("the oldest outputs go first", "oldest_first", True),
    Row("  markers that were never learned", "markers_refused"),
    Row("tokens in", "tokens"),
    Row("tokens held at the end, in all trees", "tokens_held"),
    Row("tokens/s", "tokens_per_s"),
)


def table(figures: ByScope, sizes: Sizes) -> Table:
    """One row per figure, one column per scope."""
    title = f"churn: {sizes.tokens:,} tokens, budget {sizes.budget_mb} MiB"
    result = Table(title=title, title_justify="left")
    result.add_column("", no_wrap=True)
    for heading in (*SCOPES, "bar", ""):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in ROWS:
        bar = "" if row.bar is None else _shown(row.bar) if row.bar is True else f"≤ {row.bar:g}"
        cells = [_shown(figures.get(scope, {}).get(row.figure)) for scope in SCOPES]
        result.add_row(row.label, *cells, bar, report.verdict(row.passes(figures)))
    return result


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.3g}"


def summary(figures: ByScope) -> dict[str, float | bool | None]:
    """What is judged, by scope or of the worst scope; None where nothing was measured."""
    memory, in_order = (_measured(figures, figure) for figure in ("memory_max_ratio", "oldest_first"))
    by_scope = {
        f"{figure}_{scope}": figures.get(scope, {}).get(figure)
        for figure in ("rss_max_ratio", "slowest_call_ms")
        for scope in SCOPES
    }
    return {
        **by_scope,
        "memory_max_ratio": max(memory, default=None),
        "oldest_first": all(in_order) if in_order else None,
    }


def _measured(figures: ByScope, figure: str) -> list[Any]:
    values = [by_name.get(figure) for by_name in figures.values()]
    return [value for value in values if value is not None]


def plot(figures: ByScope, sizes: Sizes, path: Path) -> None:
    """Memory against tokens, one picture per scope."""
    figure = Figure(figsize=(4 * len(figures), 3.6), layout="constrained")
    pictures = figure.subplots(1, len(figures), sharey=True, squeeze=False)[0]
    for axes, (scope, measured) in zip(pictures, figures.items(), strict=True):
        series = measured["series"]
        millions = [tokens / 1e6 for tokens in series["tokens"]]
        axes.plot(millions, series["rss_mib"], label="RSS above the baseline")
        axes.plot(millions, series["memory_mib"], label="memory_bytes")
        axes.axhline(sizes.budget_mb, color="black", linestyle="--", linewidth=1, label="budget")
        axes.set(title=f"budget of the {scope}", xlabel="million tokens", xlim=(0, None), ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
    pictures[0].set_ylabel("MiB")
    pictures[-1].legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
