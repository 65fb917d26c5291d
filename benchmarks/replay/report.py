"""Counts as a table, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from agentspec.benchmarks.replay import advice
from agentspec.benchmarks.replay.advice import Advice
from agentspec.benchmarks.replay.jobs import ByMethod
from agentspec.benchmarks.replay.tally import Tally, total

HEADINGS = ("tokens/step", "drafted/step", "accepted", "µs/step", "calibration error")
ALL = "all"


def table(results: Mapping[str, ByMethod]) -> Table:
    """A row for each file and method."""
    shown = Table(title="replay", title_justify="left")
    for heading in ("calls of", "method", *HEADINGS):
        shown.add_column(heading, justify="left" if heading in ("calls of", "method") else "right")
    for name, by_method in results.items():
        for method, by_stage in by_method.items():
            shown.add_row(name, method, *_cells(total(by_stage.values())))
        shown.add_section()
    return shown


def markdown(results: Mapping[str, ByMethod], advised: Mapping[str, Advice]) -> str:
    """For each file a table, with a row for each method and stage, and what is recommended."""
    lines = []
    for name, by_method in results.items():
        lines += [
            f"## {name}",
            "",
            f"| method | stage | {' | '.join(HEADINGS)} |",
            "|---|---" + "|--:" * 5 + "|",
        ]
        for method, by_stage in by_method.items():
            rows = {ALL: total(by_stage.values()), **dict(sorted(by_stage.items()))}
            lines += [f"| {method} | {stage} | {' | '.join(_cells(one))} |" for stage, one in rows.items()]
        lines += ["", *advice.markdown(advised[name])]
    return "\n".join(lines)


def _cells(tally: Tally) -> list[str]:
    return [
        f"{tally.tokens_per_step:.3f}",
        f"{tally.drafted_per_step:.2f}",
        f"{tally.acceptance_rate:.1%}",
        f"{tally.draft_ns / max(tally.steps, 1) / 1e3:.1f}",
        "-" if tally.calibration_error is None else f"{tally.calibration_error:.3f}",
    ]


def figures(results: Mapping[str, ByMethod]) -> dict[str, Any]:
    """Everything that was counted, by file, method and stage."""
    return {
        name: {
            method: {
                stage: _figures(tally) for stage, tally in {ALL: total(by_stage.values()), **by_stage}.items()
            }
            for method, by_stage in by_method.items()
        }
        for name, by_method in results.items()
    }


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "steps": tally.steps,
        "tokens": tally.tokens,
        "tokens_per_step": tally.tokens_per_step,
        "drafted_per_step": tally.drafted_per_step,
        "acceptance_rate": tally.acceptance_rate,
        "draft_us_per_step": tally.draft_ns / max(tally.steps, 1) / 1e3,
        "draft_us_per_token": tally.draft_ns / max(tally.tokens, 1) / 1e3,
        "calibration_error": tally.calibration_error,
        "by_source": _shares({source.name.lower(): key for source, key in tally.by_source.items()}),
        "by_match": _shares({str(size): key for size, key in tally.by_match.items()}),
    }


def _shares(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"drafted": drafted, "accepted": accepted} for name, (drafted, accepted) in counts.items()}
