"""The order of calls: sessions one after another, or several concurrently.

A session's calls follow one another. Each open session has one running call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from agentspec.errors import ConfigError
from agentspec.replay.calls import Call


class Schedule:
    """A schedule of calls. ``begin`` returns the calls to start now. ``end`` takes a finished call."""

    def __init__(self, calls: Iterable[Call], num_sessions: int = 1) -> None:
        if num_sessions < 1:
            raise ConfigError(f"at least 1 session runs at a time, not {num_sessions!r}")
        self._waiting: defaultdict[str, deque[Call]] = defaultdict(deque)
        for call in calls:
            self._waiting[call.session].append(call)
        self._next = iter(list(self._waiting))
        self._num_free = num_sessions

    def begin(self) -> list[Call]:
        """Return the calls to start now."""
        begun = []
        while self._num_free and (session := next(self._next, None)) is not None:
            self._num_free -= 1
            begun.append(self._waiting[session].popleft())
        return begun

    def end(self, call: Call) -> Call | None:
        """Return the next call of the session, or None if this was the last."""
        if waiting := self._waiting[call.session]:
            return waiting.popleft()
        self._num_free += 1
        return None
