"""How long the proposer takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Sums over all steps so far."""

    num_steps: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Another step."""
        self.num_steps += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def microseconds(self) -> dict[str, float]:
        """For a report: steps, mean and longest time."""
        mean_s = self.total_s / self.num_steps if self.num_steps else 0.0
        return {"steps": self.num_steps, "mean": mean_s * 1e6, "max": self.longest_s * 1e6}
