"""The bounded queue between decode steps and the publisher's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from agentspec.corpus.output import Output
from agentspec.stages import StageKey

DroppedName = tuple[StageKey, bytes]  # and the subject

_ENTRY_BYTES = 400  # beside the tokens


class FinishedOutput(NamedTuple):
    """An output, and how many of its tokens shared trees drafted and the model accepted."""

    output: Output
    num_accepted_from_shared: int


class OutputQueue:
    """Finished outputs within a number of bytes: the oldest are dropped. Thread-safe.

    A writer never waits for work: the lock is held for a few operations on the deque.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._has_some = threading.Event()
        self._finished: deque[FinishedOutput] = deque()
        self._num_bytes = 0
        self._num_dropped = 0
        self._dropped: set[DroppedName] = set()

    def put(self, finished: FinishedOutput) -> None:
        """Add an output. Drops the oldest ones if there is no room."""
        with self._lock:
            was_empty = not self._finished
            self._finished.append(finished)
            self._num_bytes += _size(finished)
            while self._num_bytes > self._most_bytes:
                self._drop(self._finished.popleft())
        if was_empty:
            self._has_some.set()

    def take(self) -> list[FinishedOutput]:
        """Remove and return all outputs."""
        with self._lock:
            taken = list(self._finished)
            self._finished.clear()
            self._num_bytes = 0
            self._has_some.clear()
        return taken

    def withdraw(self, is_covered: Callable[[Output], bool]) -> list[Output]:
        """Remove and return the outputs that an erasure covers."""
        taken = self.take()
        kept = [finished for finished in taken if not is_covered(finished.output)]
        with self._lock:
            self._finished.extendleft(reversed(kept))
            self._num_bytes += sum(map(_size, kept))
            self._has_some.set()
        return [finished.output for finished in taken if is_covered(finished.output)]

    def take_dropped(self) -> set[DroppedName]:
        """Return the stages and subjects of which outputs were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, set()
        return dropped

    def wait(self, timeout_s: float) -> None:
        """Return once there is an output, or after the time-out."""
        self._has_some.wait(timeout_s)

    def wake(self) -> None:
        """End a wait."""
        self._has_some.set()

    @property
    def num_dropped(self) -> int:
        """Count the outputs dropped for want of room."""
        return self._num_dropped

    def _drop(self, finished: FinishedOutput) -> None:
        output = finished.output
        self._num_bytes -= _size(finished)
        self._num_dropped += 1
        self._dropped.add((output.stage, output.subject))


def _size(finished: FinishedOutput) -> int:
    return finished.output.tokens.nbytes + _ENTRY_BYTES
