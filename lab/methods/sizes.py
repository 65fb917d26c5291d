"""Sizes of the full and the quick comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work: questions of the part sql, cold and again warm."""

    num_questions: int = 24


FULL = Sizes()
QUICK = Sizes(2)
