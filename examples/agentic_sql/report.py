"""A measurement as a table, as one JSON line and as a plot."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from rich.table import Table

from examples.agentic_sql.measurement import Measurement
from examples.agentic_sql.question_set import novelty
from examples.agentic_sql.questions import Question
from examples.saving import table as saving
from examples.saving.stage_row import SOURCES


def table(measurement: Measurement) -> Table:
    """Return a table with one row per stage and one for the total."""
    return saving.table("AgenticSQL: what speculation saved", measurement.rows)


def verdict(measurement: Measurement, questions: list[Question]) -> list[str]:
    """Return the lines below the table."""
    with_it, without = measurement.accuracy(measurement.on), measurement.accuracy(measurement.off)
    lines = [
        f"execution accuracy with speculation {with_it:.1%}"
        + (f", without {without:.1%}" if without is not None else "")
    ]
    groups: dict[str, list[bool]] = defaultdict(list)
    for question, outcome in zip(questions, measurement.on, strict=True):
        groups[novelty(question)].append(outcome.is_correct)
    lines.append("by what is new: " + ", ".join(f"{k} {sum(v)}/{len(v)}" for k, v in sorted(groups.items())))
    if measurement.outputs_identical is not None:
        lines.append(
            f"outputs identical with and without: {'yes' if measurement.outputs_identical else 'NO'}"
        )
    return lines


def json_line(measurement: Measurement, arguments: dict[str, object]) -> str:
    """Return all figures with their provenance, as one line of JSON."""
    return json.dumps(
        {
            "summary": measurement.summary(),
            "stages": saving.figures(measurement.rows),
            "provenance": saving.provenance(arguments),
        }
    )


def plot(measurement: Measurement, path: Path) -> None:
    """Write a PNG of TPOT with and without speculation, and the share of each draft source."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = measurement.rows
    names = [r.stage for r in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    positions = range(len(rows))
    left.bar(
        [p - 0.2 for p in positions],
        [r.tpot_off_s * 1e3 for r in rows],
        0.4,
        label="without",
        color="#9aa5b1",
    )
    left.bar(
        [p + 0.2 for p in positions],
        [r.tpot_on_s * 1e3 for r in rows],
        0.4,
        label="with speculation",
        color="#2f6f9f",
    )
    for position, row in zip(positions, rows, strict=True):
        left.text(
            position + 0.2, row.tpot_on_s * 1e3, f"{row.speedup:.1f}x", ha="center", va="bottom", fontsize=8
        )
    left.set(ylabel="time per output token, ms", title="Same outputs, less time")
    bottoms = [0.0] * len(rows)
    for source in SOURCES:
        shares = [r.share(source) * 100 for r in rows]
        right.bar(positions, shares, 0.6, bottom=bottoms, label=source)
        bottoms = [b + s for b, s in zip(bottoms, shares, strict=True)]
    right.set(ylabel="% of drafted tokens", title="Sources of the drafts")
    for axes in (left, right):
        axes.set_xticks(list(positions), names, rotation=30)
        axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
