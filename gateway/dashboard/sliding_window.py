"""A sliding window over the counters of one stage, in buckets of a few seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from agentspec.stats import StageStats, tokens_per_step

BUCKET_S = 2.0
NUM_BUCKETS = 90  # three minutes
NUM_NOW = 3  # number of buckets that count as "now": four to six seconds


@dataclass(slots=True)
class Gain:
    """The increase of counters in a number of seconds, or their values at a time."""

    seconds: float = 0.0
    num_requests: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_accepted_tokens: int = 0

    @property
    def requests_per_s(self) -> float:
        """Started requests per second."""
        return self.num_requests / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return self.num_output_tokens / self.seconds if self.seconds else 0.0

    @property
    def accepted_per_step(self) -> float | None:
        """As in StageStats; None if unknown."""
        return tokens_per_step(self.num_steps, self.num_accepted_tokens, self.num_output_tokens)

    def add(self, other: Gain, sign: int = 1) -> None:
        """Add the gain of another period, or subtract it if ``sign`` is -1."""
        self.seconds += sign * other.seconds
        self.num_requests += sign * other.num_requests
        self.num_output_tokens += sign * other.num_output_tokens
        self.num_steps += sign * other.num_steps
        self.num_accepted_tokens += sign * other.num_accepted_tokens


class SlidingWindow:
    """A sliding window of ``NUM_BUCKETS`` buckets with ``BUCKET_S`` seconds each.

    Attributes:
        recent: gain in the whole window.
    """

    def __init__(self) -> None:
        self.recent = Gain()
        self._buckets: deque[Gain] = deque()
        self._last: Gain | None = None

    def update(self, now_s: float, stats: StageStats) -> None:
        """Add the present values of the counters."""
        last = self._last
        self._last = Gain(
            now_s, stats.num_requests, stats.num_output_tokens, stats.num_steps, stats.num_accepted_tokens
        )
        if last is not None:
            gain = _between(last, self._last)
            self._bucket().add(gain)
            self.recent.add(gain)

    @property
    def now(self) -> Gain:
        """Gain in the last ``NUM_NOW`` buckets."""
        total = Gain()
        for gain in list(self._buckets)[-NUM_NOW:]:
            total.add(gain)
        return total

    @property
    def series(self) -> list[float | None]:
        """Output tokens per decode step of each bucket, oldest first; None without steps."""
        return [gain.accepted_per_step for gain in self._buckets]

    def _bucket(self) -> Gain:
        if not self._buckets or self._buckets[-1].seconds >= BUCKET_S:
            self._buckets.append(Gain())
            if len(self._buckets) > NUM_BUCKETS:
                self.recent.add(self._buckets.popleft(), sign=-1)
        return self._buckets[-1]


def _between(last: Gain, now: Gain) -> Gain:
    """Return the gain between two readings; 0 for counters that decreased because the engine restarted."""
    return Gain(
        now.seconds - last.seconds,
        max(0, now.num_requests - last.num_requests),
        max(0, now.num_output_tokens - last.num_output_tokens),
        max(0, now.num_steps - last.num_steps),
        max(0, now.num_accepted_tokens - last.num_accepted_tokens),
    )
