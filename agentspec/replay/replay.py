"""The simulated verifier: the record is what the model would say (paper, section 4.1)."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from agentspec.draft import Draft
from agentspec.forest import Tokens
from agentspec.replay.calls import Call
from agentspec.replay.drafters import Drafter
from agentspec.replay.schedule import Schedule
from agentspec.replay.tally import Tally

_NO_TOKENS: Tokens = np.empty(0, np.int32)

Progress = Callable[[int], None]  # is told how many calls have ended


@dataclass(slots=True)
class _Running:
    name: str
    call: Call
    size: int = 0  # of the response, as far as it is accepted
    new: Tokens = field(default_factory=lambda: _NO_TOKENS)


def replay(
    calls: Iterable[Call], drafter: Drafter, num_sessions: int = 1, progress: Progress | None = None
) -> dict[str, Tally]:
    """Tallies by stage. All running calls take a step in turn; a response is learned when it is over.

    Deterministic but for the times.
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
    """One token more than was accepted is new: the model's own, unless the response has ended before."""
    begin = time.perf_counter_ns()
    draft = drafter.step(one.name, one.new)
    elapsed_ns = time.perf_counter_ns() - begin
    ahead = one.call.response[one.size :]
    accepted = verify(draft, ahead, tally)
    one.new = ahead[: accepted + 1]
    one.size += len(one.new)
    tally.add(draft, accepted, len(one.new), elapsed_ns)


def verify(draft: Draft, ahead: Tokens, tally: Tally) -> int:
    """How many draft tokens the model accepts: the path of the tree that agrees with what it says."""
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
