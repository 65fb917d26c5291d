"""Sizes of the full and the quick churn benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.churn.scopes import Scope


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of data.

    Attributes:
        tokens: accepted output tokens in each scope.
        budget_mb: budget of the scope, MiB.
        hard_tokens: tokens of a scope with outputs made to stress eviction.
        hard_budget_mb: budget of such a scope, MiB.
        dataset_tokens: maximum number of tokens that texts use of each trace file.
    """

    tokens: int = 20_000_000
    budget_mb: int = 128
    hard_tokens: int = 4_000_000
    hard_budget_mb: int = 64
    dataset_tokens: int = 1_500_000

    def of(self, scope: Scope) -> Sizes:
        """Return sizes with this scope's tokens and budget."""
        return (
            replace(self, tokens=self.hard_tokens, budget_mb=self.hard_budget_mb) if scope.is_hard else self
        )

    @property
    def budget_bytes(self) -> int:
        """Budget in bytes."""
        return self.budget_mb << 20


FULL = Sizes()
QUICK = Sizes(tokens=3_000_000, budget_mb=64, hard_tokens=3_000_000, dataset_tokens=60_000)
