"""The results of all workloads: a summary, and a table of all methods."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from rich.table import Table

from agentspec.reporting.report import verdict
from benchmarks.harness.scorecard import Parts, Scorecard
from lab.methods.workloads import OPEN

PHASES = ("cold", "warm")
_RATIO = "hybrid_vs_best_part"
_TREES = "hybrid_vs_trees_at_the_same_price_mean"
_EQUAL = "hybrid_vs_trees_at_equal_drafts_mean"
_BARS: Mapping[str, float] = {
    f"{_RATIO}_mean": 1.08,
    f"{_RATIO}_min": 0.99,
    "hybrid_vs_trees_open_mean": 1.3,
    "hybrid_vs_trees_open_min": 1.3,
}


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if nothing was measured."""
    served = [one for part in parts.values() for phase in PHASES for one in part.get(phase, {}).values()]
    compared = [(name, one) for name, part in parts.items() for one in part.get("against_parts", {}).values()]
    ratios = [one for _, one in compared if one[f"{_RATIO}_mean"] is not None]
    open_ended = [one for name, one in compared if name.startswith(OPEN)]
    at_same_price = [one[_TREES] for one in open_ended]
    at_equal_drafts = [one[_EQUAL] for one in open_ended if one[_EQUAL] is not None]
    return {
        "outputs_identical": all(one["outputs_identical"] for one in served) if served else None,
        "hybrid_vs_best_part_mean": fmean(one[f"{_RATIO}_mean"] for one in ratios) if ratios else None,
        "hybrid_vs_best_part_min": min((one[f"{_RATIO}_min"] for one in ratios), default=None),
        "hybrid_vs_trees_open_mean": fmean(at_same_price) if at_same_price else None,
        "hybrid_vs_trees_open_min": min(at_same_price, default=None),
        "hybrid_vs_trees_open_equal_drafts_min": min(at_equal_drafts, default=None),
    }


class MethodsCard(Scorecard):
    """A scorecard that shows all methods."""

    def table(self, parts: Parts) -> Table:
        """Return a row per method: tokens and draft tokens per step, and the speed on this CPU."""
        result = Table(title="tokens per step / drafted per step / speed on this CPU", title_justify="left")
        result.add_column("")
        columns = [(name, phase) for name, part in parts.items() for phase in PHASES if phase in part]
        for name, phase in columns:
            result.add_column(f"{name}, {phase}", justify="right", no_wrap=True)
        for method in dict.fromkeys(method for name, phase in columns for method in parts[name][phase]):
            cells = [parts[name][phase].get(method) for name, phase in columns]
            result.add_row(method, *("" if one is None else _cell(one) for one in cells))
        found = summary(parts)
        judged = [
            f"{name} {found[name]:.3f} {_judged(found[name], bar)}"
            for name, bar in _BARS.items()
            if found[name] is not None
        ]
        result.caption = "\n".join(judged)
        return result


CARD = MethodsCard("methods", "drafting methods live, on the model's own text", (), summary)


def _judged(value: float, bar: float) -> str:
    return f"{verdict(value >= bar)} (at least {bar:g})"


def _cell(served: Mapping[str, float]) -> str:
    tokens, drafted, speed = (served[key] for key in ("tokens_per_step", "drafted_per_step", "speedup_cpu"))
    return f"{tokens:.2f} / {drafted:.1f} / {speed:.2f}"
