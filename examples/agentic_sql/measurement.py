"""What was measured over a run: calls with and without speculation, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from examples.agentic_sql.calls import Call
from examples.agentic_sql.query import Query
from examples.agentic_sql.workflow import Answer

SOURCES = ("request", "session", "stage", "workflow")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question taken through the pipeline once."""

    query: Query
    answer: Answer
    is_correct: bool
    calls: tuple[Call, ...]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Every stage's text, for comparing two runs; parallel stages in a fixed order."""
        return sorted((c.stage, c.text) for c in self.calls)


@dataclass(slots=True)
class StageRow:
    """One row of the table. TPOTs in seconds; NaN-free: 0 where nothing was measured."""

    stage: str
    calls: int = 0
    output_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    tpot_off_s: float = 0.0
    tpot_on_s: float = 0.0

    @property
    def accepted_per_step(self) -> float:
        """Mean output tokens per decode step; 1.0 = no speculation."""
        return (self.steps + self.accepted) / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def speedup(self) -> float:
        """TPOT without / with speculation."""
        return self.tpot_off_s / self.tpot_on_s if self.tpot_on_s else 0.0

    def share(self, source: str) -> float:
        """Share of the drafted tokens that came from this source."""
        return self.by_source.get(source, 0) / self.drafted if self.drafted else 0.0


def _tpot(calls: Iterable[Call]) -> float:
    timed = [c for c in calls if c.num_output_tokens > 1]
    return sum(c.decode_s for c in timed) / max(1, sum(c.num_output_tokens - 1 for c in timed))


def stage_row(stage: str, on: Sequence[Call], off: Sequence[Call]) -> StageRow:
    """Sum up one stage's calls."""
    row = StageRow(stage, calls=len(on), output_tokens=sum(c.num_output_tokens for c in on))
    for call in on:
        row.steps += call.speculation.get("num_spec_steps", 0)
        row.drafted += call.speculation.get("num_draft_tokens", 0)
        row.accepted += call.speculation.get("num_accepted_draft_tokens", 0)
        for source, tokens in call.speculation.get("draft_tokens_by_source", {}).items():
            row.by_source[source] = row.by_source.get(source, 0) + tokens
    row.tpot_on_s, row.tpot_off_s = _tpot(on), _tpot(off)
    return row


@dataclass(frozen=True, slots=True)
class Measurement:
    """All questions, with speculation (``on``) and, if compared, without (``off``)."""

    on: list[Outcome]
    off: list[Outcome]

    @property
    def rows(self) -> list[StageRow]:
        """One row per stage in order of first use, then the whole."""
        on = [c for o in self.on for c in o.calls]
        off = [c for o in self.off for c in o.calls]
        stages = sorted({c.stage for c in on}, key=_order)
        rows = [
            stage_row(s, [c for c in on if c.stage == s], [c for c in off if c.stage == s]) for s in stages
        ]
        return [*rows, stage_row("all", on, off)]

    @property
    def outputs_identical(self) -> bool | None:
        """True if every call of every question wrote the same text both times; None if not compared."""
        if not self.off:
            return None
        return all(a.texts == b.texts for a, b in zip(self.on, self.off, strict=True))

    @staticmethod
    def accuracy(outcomes: Sequence[Outcome]) -> float | None:
        """Execution accuracy; None without questions."""
        return sum(o.is_correct for o in outcomes) / len(outcomes) if outcomes else None

    def summary(self) -> dict[str, object]:
        """The figures people compare."""
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
