"""Durations of the proposer's calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Sums of durations over all steps so far."""

    num_steps: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a step of this duration."""
        self.num_steps += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def microseconds(self) -> dict[str, float]:
        """Return the number of steps, and their mean and longest time."""
        mean_s = self.total_s / self.num_steps if self.num_steps else 0.0
        return {"steps": self.num_steps, "mean": mean_s * 1e6, "max": self.longest_s * 1e6}
