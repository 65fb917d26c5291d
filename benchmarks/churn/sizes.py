"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of data.

    Attributes:
        tokens: accepted output tokens that flow through each scope.
        budget_mb: what the scope may hold, MiB.
        dataset_tokens: tokens of each trace file that texts are made of, at most.
    """

    tokens: int = 20_000_000
    budget_mb: int = 128
    dataset_tokens: int = 1_500_000

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self.budget_mb << 20


FULL = Sizes()
QUICK = Sizes(tokens=3_000_000, budget_mb=64, dataset_tokens=60_000)
