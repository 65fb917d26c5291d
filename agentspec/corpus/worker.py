"""A background thread that repeats a step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("agentspec")


class Worker:
    """Repeats a step in a thread until it is closed. A step that fails is logged, and repeated after a pause.

    Args:
        name: of the thread, and of what failed in the log.
        step: returns soon after ``closing`` is set.
        begin: called in the thread before the first step.
        end: called in the thread after the last step.
        retry_s: seconds to wait after a failure.

    Attributes:
        closing: set when the thread is to end.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        *,
        begin: Callable[[], object] = lambda: None,
        end: Callable[[], object] = lambda: None,
        retry_s: float = 1.0,
    ) -> None:
        self._name = name
        self._step = step
        self._begin = begin
        self._end = end
        self._retry_s = retry_s
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agentspec-{name}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the thread, and wait for it at most ``timeout_s``."""
        self.closing.set()
        if self.is_alive:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._attempt(self._begin)
        while not self.closing.is_set():
            if not self._attempt(self._step):
                self.closing.wait(self._retry_s)
        self._attempt(self._end)

    def _attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except Exception:  # serving continues
            logger.exception("%s: a step failed", self._name)
            return False
        return True
