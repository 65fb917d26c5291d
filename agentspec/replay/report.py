"""Counts as a table, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from agentspec.draft import TREES, Source
from agentspec.replay import advice
from agentspec.replay.advice import Advice
from agentspec.replay.costs import ROW_COSTS, TYPICAL, speedup
from agentspec.replay.jobs import ByMethod, Replayed
from agentspec.replay.tally import MATCH_LABELS, Tally, accepted_shares, total

# ECE: expected calibration error of the chances
HEADINGS = ("speed-up", "tokens/step", "drafted/step", "accepted", "µs/step", "ECE")
ALL = "all"


def table(replayed: Mapping[str, Replayed]) -> Table:
    """Return a table with a row for each file and method, the fastest first.

    Methods with a price have the figures at the price that fits: each drafts as much as pays. The first row
    of a file has its name.
    """
    shown = Table(title=f"replay, for {ROW_COSTS[TYPICAL]}", title_justify="left", box=SIMPLE)
    shown.add_column("calls of", overflow="fold")
    shown.add_column("method", no_wrap=True)
    for heading in HEADINGS:
        shown.add_column(heading.replace("/", "\n/").replace(" ", "\n"), justify="right", no_wrap=True)
    for name, one in replayed.items():
        for method, tally in _ranked(one):
            shown.add_row(name, method, *_cells(tally))
            name = ""
        shown.add_section()
    return shown


def _ranked(replayed: Replayed) -> list[tuple[str, Tally]]:
    """Return the methods at their fitting prices, by falling speed-up."""
    fitted = {**replayed.by_method, **replayed.at_costs.get(TYPICAL, {})}
    tallies = {method: total(by_stage.values()) for method, by_stage in fitted.items()}
    return sorted(tallies.items(), key=lambda one: -speedup(one[1], TYPICAL))


def markdown(results: Mapping[str, ByMethod], advised: Mapping[str, Advice]) -> str:
    """Return a Markdown table for each file, with a row for each method and stage, and the advice."""
    lines = []
    for name, by_method in results.items():
        lines += [
            f"## {name}",
            "",
            f"| method | stage | {' | '.join(HEADINGS)} |",
            "|---|---" + "|--:" * len(HEADINGS) + "|",
        ]
        for method, by_stage in by_method.items():
            rows = {ALL: total(by_stage.values()), **dict(sorted(by_stage.items()))}
            lines += [f"| {method} | {stage} | {' | '.join(_cells(one))} |" for stage, one in rows.items()]
        lines += ["", *_origins(by_method), *advice.markdown(advised[name])]
    for name in [name for name in advised if name not in results]:  # all files together
        lines += [f"## {name}", "", *advice.markdown(advised[name])]
    return "\n".join(lines)


def _origins(by_method: ByMethod) -> Iterator[str]:
    """Yield a table of the accepted draft tokens' sources and match lengths, for each method."""
    yield "Accepted draft tokens by source and by match length (tokens):"
    yield ""
    sources = [source for source in TREES if source is not Source.NONE]
    yield f"| method | {' | '.join([*(one.name.lower() for one in sources), *MATCH_LABELS.values()])} |"
    yield "|---" + "|--:" * (len(sources) + len(MATCH_LABELS)) + "|"
    for method, by_stage in by_method.items():
        tally = total(by_stage.values())
        by_source, by_match = accepted_shares(tally.by_source), accepted_shares(tally.by_match)
        shares = [by_source.get(one) for one in sources] + [by_match.get(one) for one in MATCH_LABELS]
        cells = ["-" if share is None else f"{share:.0%}" for share in shares]
        yield f"| {method} | {' | '.join(cells)} |"
    yield ""


def _cells(tally: Tally) -> list[str]:
    return [
        f"{speedup(tally, TYPICAL):.2f}",
        f"{tally.tokens_per_step:.3f}",
        f"{tally.drafted_per_step:.2f}",
        f"{tally.acceptance_rate:.1%}",
        f"{tally.draft_us_per_step:.1f}",
        "-" if tally.calibration_error is None else f"{tally.calibration_error:.3f}",
    ]


def figures(results: Mapping[str, ByMethod]) -> dict[str, Any]:
    """Return all counts by file, method and stage."""
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
        **tally.figures(),
        "draft_us_per_token": tally.draft_ns / max(tally.tokens, 1) / 1e3,
        "calibration_error": tally.calibration_error,
        "by_source": {source.name.lower(): asdict(one) for source, one in sorted(tally.by_source.items())},
        "by_match": {str(size): asdict(one) for size, one in sorted(tally.by_match.items())},
    }
