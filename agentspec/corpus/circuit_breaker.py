"""A circuit breaker: pauses that grow while a store fails."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

logger = logging.getLogger("agentspec")

FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 8.0  # so that all is as before within ten seconds


class CircuitBreaker:
    """Opens at a failure, for a pause that doubles with each further one, and closes at a success.

    Logs one line per change. Not thread-safe.

    Args:
        what: names in the log what pauses.
        clock: monotonic seconds.
        spread: returns the share of a pause to wait, so that engines do not all return at once.
    """

    def __init__(
        self,
        what: str,
        clock: Callable[[], float],
        spread: Callable[[], float] = lambda: random.uniform(0.5, 1.0),
    ) -> None:
        self._what = what
        self._clock = clock
        self._spread = spread
        self._pause_s = 0.0
        self._retry_s = 0.0
        self.num_failures = 0

    @property
    def is_open(self) -> bool:
        """True from the first failure to the next success."""
        return self._pause_s > 0

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt is due; 0 if it may be made now."""
        return max(0.0, self._retry_s - self._clock()) if self.is_open else 0.0

    def fail(self, error: Exception) -> None:
        """Open, or stay open for longer."""
        if not self.is_open:
            logger.warning("%s pauses: %s", self._what, error)
        self.num_failures += 1
        self._pause_s = min(MOST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._retry_s = self._clock() + self._pause_s * self._spread()

    def succeed(self) -> None:
        """Close."""
        if self.is_open:
            logger.warning("%s continues", self._what)
        self._pause_s = 0.0
