"""The bars detect forests that keep within their budget by not doing their work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from agentspec import Forest
from agentspec.forest import Tokens
from lab.churn import report
from lab.churn.measure import measure
from lab.churn.scopes import SCOPES, Scope
from lab.churn.sizes import Sizes

SIZES = Sizes(tokens=60_000, budget_mb=1)


class Wiping(Forest):
    """A forest that forgets everything when it is full."""

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        super().finish(request_id, learn, output)
        [stage] = SCOPES["stage"].stages()
        if self.memory_bytes(stage) > 0.85 * SIZES.budget_bytes:
            self.evict(stage)


class Forgetful(Forest):
    """A forest that never learns."""

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        super().finish(request_id, learn=False)

    def learn(self, *args: Any, **options: Any) -> None:
        pass


@dataclass(frozen=True)
class Faulty(Scope):
    """A scope with another kind of forest."""

    kind: type[Forest] = Forest

    def forest(self, budget_bytes: int) -> Forest:
        return self.kind(super().forest(budget_bytes).config)


def failed(kind: type[Forest]) -> set[str]:
    """Return the figures beyond their bars, times excluded."""
    stage = SCOPES["stage"]
    faulty = Faulty(stage.name, stage.limit, stage.tenants, stage.num_stages, stage.sources, kind=kind)
    rng = np.random.default_rng(0)
    outputs = [rng.integers(0, 1000, 100, np.int32) for _ in range(300)]
    figures = {"stage": measure(faulty, [outputs], SIZES)}
    judged = [row for row in report.ROWS if not row.figure.startswith(("rss", "slowest"))]
    return {row.figure for row in judged if row.passes(figures) is False}


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        (Wiping, {"memory_min_ratio"}),
        (Forgetful, {"memory_min_ratio", "oldest_first", "markers_refused"}),
    ],
)
def test_faults_are_found(kind: type[Forest], figures: set[str]) -> None:
    assert figures <= failed(kind)


def test_a_forest_that_does_its_work_passes() -> None:
    assert failed(Forest) == set()
