"""Stage rows as a table and as JSON, with the provenance of the measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

import agentspec
from examples.saving.stage_row import ALL, SOURCES, StageRow


def table(title: str, rows: Iterable[StageRow]) -> Table:
    """Return a table with one row per stage and one for the total."""
    result = Table(title=title, title_justify="left")
    result.add_column("stage")
    for heading in (
        "calls",
        "output\ntokens",
        "tokens\n/step",
        "accept-\nance",
        "TPOT off\nms",
        "TPOT on\nms",
        "speed-\nup",
        *(f"{s} %" for s in SOURCES),
    ):
        result.add_column(heading, justify="right")
    for row in rows:
        if row.stage == ALL:
            result.add_section()
        result.add_row(*_cells(row))
    return result


def _cells(row: StageRow) -> list[str]:
    off = row.tpot_off_s > 0
    return [
        row.stage,
        str(row.calls),
        str(row.output_tokens),
        f"{row.accepted_per_step:.2f}",
        f"{row.acceptance_rate:.0%}",
        f"{row.tpot_off_s * 1e3:.2f}" if off else "-",
        f"{row.tpot_on_s * 1e3:.2f}",
        f"{row.speedup:.2f}x" if off else "-",
        *(f"{row.share(s):.0%}" for s in SOURCES),
    ]


def figures(rows: Iterable[StageRow]) -> dict[str, dict[str, object]]:
    """Return the figures by stage, for JSON."""
    return {
        row.stage: {
            "calls": row.calls,
            "output_tokens": row.output_tokens,
            "steps": row.steps,
            "accepted_per_step": round(row.accepted_per_step, 3),
            "acceptance_rate": round(row.acceptance_rate, 3),
            "tpot_off_ms": round(row.tpot_off_s * 1e3, 3),
            "tpot_on_ms": round(row.tpot_on_s * 1e3, 3),
            "speedup": round(row.speedup, 3),
            "draft_share": {s: round(row.share(s), 3) for s in SOURCES},
        }
        for row in rows
    }


def provenance(arguments: dict[str, object]) -> dict[str, object]:
    """Return versions, commit, machine and arguments."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "agentspec": agentspec.__version__,
        "commit": commit.stdout.strip() or None,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "arguments": arguments,
    }
