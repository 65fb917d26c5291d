"""Thread pools: a function that is submitted to one keeps the caller that submitted it.

Python copies no context into the threads of a ``ThreadPoolExecutor``, so the stage of a block around the pool
would be lost there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

from agentspec.adapters.caller import CALLER, calling
from agentspec.adapters.replacement import Tagging

logger = logging.getLogger("agentspec.adapters")


def _carrying(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def submit(executor: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        caller = CALLER.get()
        if caller is None:
            return original(executor, function, *args, **kwargs)

        def by_caller(*args: Any, **kwargs: Any) -> Any:
            with calling(caller):
                return function(*args, **kwargs)

        return original(executor, by_caller, *args, **kwargs)

    return submit


POOLS = Tagging((ThreadPoolExecutor, "submit", _carrying))


class OpenBlocks:
    """The number of ``with stage(...)`` blocks that are open now, in any thread."""

    def __init__(self) -> None:
        self._num_open = 0
        self._has_warned = False
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Count a block."""
        with self._lock:
            self._num_open += 1

    def leave(self) -> None:
        """Count a block no longer."""
        with self._lock:
            self._num_open -= 1

    def warn_of_lost_tags(self) -> None:
        """Warn, once, that a call without a caller is made in a thread of its own beside an open block."""
        thread = threading.current_thread()
        if not self._num_open or self._has_warned or thread is threading.main_thread():
            return
        self._has_warned = True
        logger.warning(
            "a call in the thread %r has no stage, while stage(...) is open in another thread. Only a"
            " ThreadPoolExecutor's threads inherit it: open stage(...) in the function that the thread runs",
            thread.name,
        )


OPEN_BLOCKS = OpenBlocks()
