"""The simulated verifier. The recorded response stands for the model's output (paper, section 4.1)."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from agentspec.draft import Draft
from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.replay.calls import Call
from agentspec.replay.drafter import Drafter
from agentspec.replay.tally import Tally

_NO_TOKENS: Tokens = np.empty(0, np.int32)

Progress = Callable[[int], None]  # receives the number of finished calls


class Schedule:
    """The order of calls: one session after another, or several concurrently.

    The calls of a session follow one another; each open session has one running call. ``begin`` returns the
    calls to start now, ``end`` takes a finished one.
    """

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


@dataclass(slots=True)
class _Running:
    name: str
    call: Call
    size: int = 0  # accepted tokens of the response
    new: Tokens = field(default_factory=lambda: _NO_TOKENS)


def replay(
    calls: Iterable[Call], drafter: Drafter, num_sessions: int = 1, progress: Progress | None = None
) -> dict[str, Tally]:
    """Replay the calls and return tallies by stage. Deterministic except for the times.

    All running calls take a step in turn. The drafter learns a response when it is complete.
    """
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    schedule = Schedule(calls, num_sessions)
    running = [_start(drafter, call, i) for i, call in enumerate(schedule.begin())]
    num_started = len(running)
    while running:
        for one in list(running):
            _step(drafter, one, tallies[one.call.stage])
            if one.size < len(one.call.response):
                continue
            running.remove(one)
            drafter.finish(one.name, one.new)
            if progress is not None:
                progress(1)
            following = schedule.end(one.call)
            for call in [following] if following is not None else schedule.begin():
                running.append(_start(drafter, call, num_started))
                num_started += 1
    return dict(tallies)


def _start(drafter: Drafter, call: Call, number: int) -> _Running:
    name = f"call-{number}"
    drafter.start(name, call)
    return _Running(name, call)


def _step(drafter: Drafter, one: _Running, tally: Tally) -> None:
    """Take one step. New tokens are the accepted ones and the model's next one, unless the response ends."""
    begin = time.perf_counter_ns()
    draft = drafter.step(one.name, one.new)
    elapsed_ns = time.perf_counter_ns() - begin
    ahead = one.call.response[one.size :]
    accepted = verify(draft, ahead, tally)
    one.new = ahead[: accepted + 1]
    one.size += len(one.new)
    tally.add(draft, accepted, len(one.new), elapsed_ns)


def verify(draft: Draft, ahead: Tokens, tally: Tally) -> int:
    """Return the number of draft tokens accepted: the path of the tree that agrees with the response."""
    node, accepted, reached = -1, 0, 1.0
    wanted = ahead.tolist()
    tokens = zip(draft.token_ids.tolist(), draft.parents.tolist(), draft.probs.tolist(), strict=True)
    for i, (token, parent, prob) in enumerate(tokens):
        if parent != node or accepted == len(wanted):
            continue
        is_right = token == wanted[accepted]
        if not math.isnan(prob):
            tally.add_estimate(min(prob / reached, 1.0), is_right)
        if is_right:
            node, accepted, reached = i, accepted + 1, prob
    return accepted
