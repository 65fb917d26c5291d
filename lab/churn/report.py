"""The figures as a table, as a summary and as a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from agentspec.reporting import report
from lab.churn.meter import LIMIT_MS
from lab.churn.repeats import NUM_RUNS
from lab.churn.scopes import SCOPES

ByScope = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of every scope.

    Attributes:
        label: text for the table.
        figure: name among a scope's figures.
        at_most: upper bar.
        at_least: lower bar; True: the figure must be true.
    """

    label: str
    figure: str
    at_most: float | None = None
    at_least: float | None = None

    def passes(self, figures: ByScope) -> bool | None:
        """Return True if every scope meets the bar, which None does not; None without bar or scopes."""
        if not figures or (self.at_most is None and self.at_least is None):
            return None
        return all(self._is_met(by_name.get(self.figure)) for by_name in figures.values())

    def _is_met(self, value: float | None) -> bool:
        if value is None:
            return False
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    @property
    def bar(self) -> str:
        """Text of the bar for the table."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        if self.at_least is not None:
            return "yes" if self.at_least is True else f"≥ {self.at_least:g}"
        return ""


ROWS = (
    Row("RSS above the baseline / budget, most", "rss_max_ratio", 1.1),
    Row("memory_bytes / budget, most", "memory_max_ratio", 1.0),
    Row("  least once it was full", "memory_min_ratio", at_least=0.75),
    Row(f"slowest call, CPU ms, least of {NUM_RUNS} runs", "slowest_call_ms", LIMIT_MS),
    Row(f"  calls of {LIMIT_MS:g} ms or more", "calls_over_limit"),
    Row("  slowest call of any single run", "slowest_call_single_ms"),
    Row("  median decode step", "median_step_ms"),
    Row("slowest call, ms of wall time", "slowest_call_wall_ms"),
    Row(f"  calls of {LIMIT_MS:g} ms or more", "calls_over_limit_wall"),
    Row("  99.9 % of calls are no longer than", "p99.9_wall_ms"),
    Row("slowest withdrawal, ms of CPU time", "slowest_withdrawal_ms"),
    Row("the oldest outputs go first", "oldest_first", at_least=True),
    Row("markers that were never learned", "markers_refused", 0),
    Row("budget, MiB", "budget_mb"),
    Row("tokens in", "tokens"),
    Row("tokens held at the end, in all trees", "tokens_held"),
    Row("tokens/s", "tokens_per_s"),
)


def table(figures: ByScope) -> Table:
    """Return a table with one row per figure, one column per scope."""
    result = Table(title="churn: many more tokens than a budget holds", title_justify="left")
    result.add_column("", no_wrap=True)
    for heading in (*SCOPES, "bar", ""):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in ROWS:
        cells = [_shown(figures.get(scope, {}).get(row.figure)) for scope in SCOPES]
        result.add_row(row.label, *cells, row.bar, report.verdict(row.passes(figures)))
    return result


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.3g}"


def summary(figures: ByScope) -> dict[str, float | bool | None]:
    """Return the figures with a bar, by scope or of the worst scope; None if not measured."""
    by_scope = {
        f"{figure}_{scope}": figures.get(scope, {}).get(figure)
        for figure in ("rss_max_ratio", "slowest_call_ms")
        for scope in SCOPES
    }
    return {
        **by_scope,
        "memory_max_ratio": _worst(max, figures, "memory_max_ratio"),
        "memory_min_ratio": _worst(min, figures, "memory_min_ratio"),
        "oldest_first": _worst(min, figures, "oldest_first"),
        "markers_refused": _worst(max, figures, "markers_refused"),
    }


def _worst(of: Callable[[list[Any]], Any], figures: ByScope, figure: str) -> Any:
    """Return the worst value of all scopes; None, which is no pass, if any scope has None."""
    values = [by_name.get(figure) for by_name in figures.values()]
    return of(values) if values and None not in values else None


def plot(figures: ByScope, path: Path) -> None:
    """Plot memory against tokens, one picture per scope."""
    figure = Figure(figsize=(4 * len(figures), 3.6), layout="constrained")
    pictures = figure.subplots(1, len(figures), squeeze=False)[0]
    for axes, (scope, measured) in zip(pictures, figures.items(), strict=True):
        series = measured["series"]
        millions = [tokens / 1e6 for tokens in series["tokens"]]
        axes.plot(millions, series["rss_mib"], label="RSS above the baseline")
        axes.plot(millions, series["memory_mib"], label="memory_bytes")
        axes.axhline(measured["budget_mb"], color="black", linestyle="--", linewidth=1, label="budget")
        axes.set(title=scope, xlabel="million tokens", xlim=(0, None), ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
    pictures[0].set_ylabel("MiB")
    pictures[-1].legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
