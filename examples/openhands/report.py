"""Repairs and savings as tables and as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from examples.openhands.repair import Repair
from examples.saving import table
from examples.saving.stage_row import ALL, StageRow


@dataclass(frozen=True, slots=True)
class Outcome:
    """All repairs with speculation, those without it if they were run, and the figures per stage."""

    on: list[Repair]
    off: list[Repair] = field(default_factory=list)
    rows: list[StageRow] = field(default_factory=list)

    @property
    def are_all_repaired(self) -> bool:
        """True if every task is repaired in every run."""
        return all(repair.is_repaired for repair in (*self.on, *self.off))

    @property
    def are_outputs_identical(self) -> bool | None:
        """True if outputs and files are the same with and without speculation; None if not compared."""
        if not self.off:
            return None
        return all(on.is_like(off) for on, off in zip(self.on, self.off, strict=True))


def tasks_table(outcome: Outcome) -> Table:
    """Return a table with one row per task."""
    result = Table(title="Repositories", title_justify="left")
    result.add_column("task")
    for heading in ("tests", "failed\nbefore", "failed\nafter", "agent's\noutputs", "off s", "on s"):
        result.add_column(heading, justify="right")
    result.add_column("")
    off: Sequence[Repair | None] = outcome.off or [None] * len(outcome.on)
    for with_drafts, without in zip(outcome.on, off, strict=True):
        result.add_row(
            with_drafts.task.name,
            str(len(with_drafts.before)),
            str(_num_failed(with_drafts.before)),
            str(_num_failed(with_drafts.after)) if with_drafts.after else "-",
            str(len(with_drafts.outputs)),
            f"{without.seconds:.1f}" if without else "-",
            f"{with_drafts.seconds:.1f}",
            "repaired" if with_drafts.is_repaired else "NOT REPAIRED",
        )
    return result


def _num_failed(tests: dict[str, bool]) -> int:
    return sum(not passed for passed in tests.values())


def stages_table(outcome: Outcome) -> Table:
    """Return a table with one row per stage."""
    return table.table("Speculation by stage", outcome.rows)


def notes(outcome: Outcome) -> list[str]:
    """Return the lines below the tables."""
    same = outcome.are_outputs_identical
    lines = ["the tests are those that came with the repository, whatever the agent did to them"]
    lines += [f"{one.task.name}: {one.failure}" for one in (*outcome.off, *outcome.on) if one.failure]
    if not outcome.rows:
        lines.append(
            "the server tells no figures per stage: put `agentspec serve --engine-url` in front of it"
        )
    if same is not None:
        lines.append(f"outputs and files with and without speculation: {_verdict(same)}")
    return lines


def _verdict(is_same: bool) -> str:
    return "identical" if is_same else "DIFFERENT"


def json_line(outcome: Outcome, arguments: dict[str, object]) -> str:
    """Return all figures with their provenance, as one line of JSON."""
    whole = next((row for row in outcome.rows if row.stage == ALL), None)
    summary = {
        "num_tasks": len(outcome.on),
        "num_repaired": sum(repair.is_repaired for repair in outcome.on),
        "outputs_identical": outcome.are_outputs_identical,
        "accepted_per_step": round(whole.accepted_per_step, 3) if whole else None,
        "speedup_tpot": round(whole.speedup, 3) if whole and outcome.off else None,
        "seconds_on": round(sum(repair.seconds for repair in outcome.on), 2),
        "seconds_off": round(sum(repair.seconds for repair in outcome.off), 2) if outcome.off else None,
    }
    tasks = {repair.task.name: {"before": repair.before, "after": repair.after} for repair in outcome.on}
    figures = {"summary": summary, "tasks": tasks, "stages": table.figures(outcome.rows)}
    return json.dumps({**figures, "provenance": table.provenance(arguments)})
