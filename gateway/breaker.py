"""A circuit breaker: an engine that keeps failing is left alone for a while."""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """Closed: requests pass. After ``num_failures`` in a row, and nothing else for ``failing_s``, open: none
    for ``open_s``. Then one is let through to try: it closes the breaker, or opens it again.

    Under load a handful of requests that can't but fail come in a row by chance; a second of them does not.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(
        self, num_failures: int, failing_s: float, open_s: float, clock: Callable[[], float]
    ) -> None:
        self._num_failures = num_failures
        self._failing_s = failing_s
        self._open_s = open_s
        self._clock = clock
        self._num_failed = 0
        self._first_failed_s = 0.0  # of those in a row
        self._opens_until: float | None = None
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """No request may pass now."""
        if self._opens_until is None:
            return False
        return self._is_trying or self._clock() < self._opens_until

    @property
    def reopens_in_s(self) -> float:
        """Seconds until one may try; 0 if one may now."""
        return 0.0 if self._opens_until is None else max(0.0, self._opens_until - self._clock())

    def enter(self) -> None:
        """A request goes through; ``succeed``, ``fail`` or ``forget`` tells how it went."""
        self._is_trying = self._opens_until is not None

    def succeed(self) -> None:
        """It was answered."""
        self._num_failed, self._opens_until, self._is_trying = 0, None, False

    def fail(self) -> None:
        """The engine did not answer, or failed."""
        now_s = self._clock()
        self._num_failed += 1
        if self._num_failed == 1:
            self._first_failed_s = now_s
        if self._num_failed >= self._num_failures and now_s - self._first_failed_s >= self._failing_s:
            self._opens_until = now_s + self._open_s
        self._is_trying = False

    def forget(self) -> None:
        """It says nothing of the engine, or nothing new."""
        self._is_trying = False
