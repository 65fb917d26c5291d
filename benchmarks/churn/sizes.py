"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.churn.scopes import Scope


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of data.

    Attributes:
        tokens: accepted output tokens that flow through each scope.
        budget_mb: what the scope may hold, MiB.
        hard_tokens: the same for a scope whose outputs are made to hurt.
        hard_budget_mb: the same for such a scope.
        dataset_tokens: tokens of each trace file that texts are made of, at most.
    """

    tokens: int = 20_000_000
    budget_mb: int = 128
    hard_tokens: int = 4_000_000
    hard_budget_mb: int = 64
    dataset_tokens: int = 1_500_000

    def of(self, scope: Scope) -> Sizes:
        """Those of this scope, as its tokens and budget."""
        return (
            replace(self, tokens=self.hard_tokens, budget_mb=self.hard_budget_mb) if scope.is_hard else self
        )

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self.budget_mb << 20


FULL = Sizes()
QUICK = Sizes(tokens=3_000_000, budget_mb=64, hard_tokens=3_000_000, dataset_tokens=60_000)
