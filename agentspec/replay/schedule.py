"""Which calls run at the same time: sessions one after another, or several side by side.

A session's calls follow one another; of those that are open, each has one call running.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from agentspec.errors import ConfigError
from agentspec.replay.calls import Call


class Schedule:
    """Hands out calls: ``begin`` says which start now, ``end`` that one of them is over."""

    def __init__(self, calls: Iterable[Call], num_sessions: int = 1) -> None:
        if num_sessions < 1:
            raise ConfigError(f"at least 1 session runs at a time, not {num_sessions!r}")
        self._waiting: defaultdict[str, deque[Call]] = defaultdict(deque)
        for call in calls:
            self._waiting[call.session].append(call)
        self._next = iter(list(self._waiting))
        self._num_free = num_sessions

    def begin(self) -> list[Call]:
        """Calls that start now."""
        begun = []
        while self._num_free and (session := next(self._next, None)) is not None:
            self._num_free -= 1
            begun.append(self._waiting[session].popleft())
        return begun

    def end(self, call: Call) -> Call | None:
        """The call that follows in its session; None if that was the last."""
        if waiting := self._waiting[call.session]:
            return waiting.popleft()
        self._num_free += 1
        return None
