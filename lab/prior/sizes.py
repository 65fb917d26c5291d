"""How much the benchmark replays."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of calls.

    Attributes:
        training_calls: first calls of each set that a prior is learned from.
        num_calls: of each set's half.
        cold_calls: of each set's half, for the part ``cold``.
        num_processes: that replay side by side.
    """

    training_calls: int = 300
    num_calls: int = 450
    cold_calls: int = 30
    num_processes: int = field(default_factory=lambda: os.cpu_count() or 1)


FULL = Sizes()
QUICK = Sizes(training_calls=20, num_calls=20, cold_calls=10)
