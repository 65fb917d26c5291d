"""Savings at one stage: totals of its calls with and without speculation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from examples.saving.calls import Call

SOURCES = ("request", "session", "stage", "workflow")
ALL = "all"


@dataclass(slots=True)
class StageRow:
    """One row of the table. TPOTs are in seconds; never NaN: 0 without measurements."""

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
        """Output tokens after the first one, per decode step; 1.0 = no speculation."""
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
        """Return the share of drafted tokens from this source."""
        return self.by_source.get(source, 0) / self.drafted if self.drafted else 0.0


def _tpot(calls: Iterable[Call]) -> float:
    timed = [c for c in calls if c.num_output_tokens > 1]
    return sum(c.decode_s for c in timed) / max(1, sum(c.num_output_tokens - 1 for c in timed))


def stage_row(stage: str, on: Sequence[Call], off: Sequence[Call]) -> StageRow:
    """Return the totals of one stage's calls."""
    row = StageRow(stage, calls=len(on), output_tokens=sum(c.num_output_tokens for c in on))
    for call in on:
        row.steps += call.speculation.get("num_spec_steps", 0)
        row.drafted += call.speculation.get("num_draft_tokens", 0)
        row.accepted += call.speculation.get("num_accepted_draft_tokens", 0)
        for source, tokens in call.speculation.get("draft_tokens_by_source", {}).items():
            row.by_source[source] = row.by_source.get(source, 0) + tokens
    row.tpot_on_s, row.tpot_off_s = _tpot(on), _tpot(off)
    return row


def stage_rows(stages: Iterable[str], on: Sequence[Call], off: Sequence[Call]) -> list[StageRow]:
    """Return one row per stage, then the total."""
    rows = [stage_row(s, [c for c in on if c.stage == s], [c for c in off if c.stage == s]) for s in stages]
    return [*rows, stage_row(ALL, on, off)]
