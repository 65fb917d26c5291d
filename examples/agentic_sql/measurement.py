"""Measurements of a run: calls with and without speculation, by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from examples.agentic_sql.query import Query
from examples.agentic_sql.workflow import Answer
from examples.saving.calls import Call
from examples.saving.stage_row import StageRow, stage_rows


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one question in one pipeline run."""

    query: Query
    answer: Answer
    is_correct: bool
    calls: tuple[Call, ...]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Text of every call, for comparison of two runs; parallel stages in a fixed order."""
        return sorted((c.stage, c.text) for c in self.calls)


@dataclass(frozen=True, slots=True)
class Measurement:
    """All questions, with speculation (``on``) and, if compared, without (``off``)."""

    on: list[Outcome]
    off: list[Outcome]

    @property
    def rows(self) -> list[StageRow]:
        """One row per stage in pipeline order, then the total."""
        on = [c for o in self.on for c in o.calls]
        off = [c for o in self.off for c in o.calls]
        return stage_rows(sorted({c.stage for c in on}, key=_order), on, off)

    @property
    def outputs_identical(self) -> bool | None:
        """True if every call of every question returned the same text both times; None if not compared."""
        if not self.off:
            return None
        return all(a.texts == b.texts for a, b in zip(self.on, self.off, strict=True))

    @staticmethod
    def accuracy(outcomes: Sequence[Outcome]) -> float | None:
        """Return the execution accuracy; None without questions."""
        return sum(o.is_correct for o in outcomes) / len(outcomes) if outcomes else None

    def summary(self) -> dict[str, object]:
        """Return the main figures."""
        rows = {r.stage: r for r in self.rows}
        compared = bool(self.off)
        return {
            "speedup_tpot": round(rows["all"].speedup, 3) if compared else None,
            "speedup_tpot_extract": round(rows["extract"].speedup, 3)
            if compared and "extract" in rows
            else None,
            "accepted_per_step": round(rows["all"].accepted_per_step, 3),
            "execution_accuracy": self.accuracy(self.on),
            "execution_accuracy_without": self.accuracy(self.off),
            "outputs_identical": self.outputs_identical,
        }


_ORDER = ("classify", "extract", "enrich", "sql_1", "sql_2", "sql_3", "combine")


def _order(stage: str) -> int:
    return _ORDER.index(stage) if stage in _ORDER else len(_ORDER)
