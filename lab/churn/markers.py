"""Markers, outputs with unique tokens: the trees that still draft them show the order of eviction."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from agentspec import Forest
from agentspec.forest import Tokens
from agentspec.stages import StageKey
from lab.churn.meter import Meter
from lab.churn.scopes import Scope, Tree

FIRST_TOKEN = 1 << 20  # beyond every vocabulary
NUM_TOKENS = 4096  # number of different tokens in markers: any few in a row occur once
MARKER_TOKENS = 256  # as long as an output, so that it takes the same memory
STEP_TOKENS = 16
CONTEXT_TOKENS = 8
END_TOKENS = 16
PROBE = "probe"


def marker(number: int) -> Tokens:
    """Return a marker: random tokens, the same for the same number."""
    return (
        np.random.default_rng(number).integers(NUM_TOKENS, size=MARKER_TOKENS, dtype=np.int32) + FIRST_TOKEN
    )


@dataclass(slots=True)
class _Trail:
    """A tree's markers by number, in order of learning, and whether each was known at the last check."""

    tree: Tree
    known: dict[int, bool] = field(default_factory=dict)

    def append(self, number: int, is_known: bool) -> None:
        """Note a marker that was learned, perhaps again: its age counts from its last occurrence."""
        self.known.pop(number, None)
        self.known[number] = is_known

    def update(self, now: dict[int, bool]) -> bool:
        """Store the current state; return True if only the newest are known, and none became known again."""
        came_back = any(is_known and not self.known[number] for number, is_known in now.items())
        self.known = now
        return not came_back and list(now.values()) == sorted(now.values())


class Markers:
    """Learns markers into every tree, and probes for known ones by drafting from it.

    Attributes:
        num_known: number of markers known at the last check, over all trees.
        num_forgotten: number of markers not known at the last check.
        num_refused: number of markers not known right after they were learned.
    """

    def __init__(self, forest: Forest, scope: Scope, meter: Meter) -> None:
        self._forest = forest
        self._meter = meter
        self._stages = scope.stages()
        self._trails = [_Trail(tree) for tree in scope.trees()]
        self._numbers = count(len(self._stages))
        self._is_in_order = True
        self.num_known = self.num_forgotten = self.num_refused = 0

    def learn(self) -> None:
        """Learn two markers per stage: its first again as a past output, a new one from a live request."""
        for first, stage in enumerate(self._stages):
            self._meter.call("learn", self._forest.learn, stage, marker(first))
            self._append(stage, first)
            new = next(self._numbers)
            self._stream(stage, marker(new))
            self._append(stage, new)

    def check(self) -> None:
        """Note whether every tree knows exactly the newest markers, and none that it had evicted."""
        known: list[bool] = []
        for trail in self._trails:
            now = {number: self._is_known(trail.tree, number) for number in trail.known}
            self._is_in_order &= trail.update(now)
            known += now.values()
        self.num_known = sum(known)
        self.num_forgotten = len(known) - self.num_known

    @property
    def in_order(self) -> bool | None:
        """True if every check found the oldest evicted first; None if the last check is inconclusive."""
        if not self._is_in_order:
            return False
        return True if self.num_known and self.num_forgotten else None

    def _stream(self, stage: StageKey, tokens: Tokens) -> None:
        self._meter.call("start", self._forest.start, PROBE, stage, tokens[:0])
        for begin in range(0, len(tokens), STEP_TOKENS):
            self._meter.call("step", self._forest.step, [(PROBE, tokens[begin : begin + STEP_TOKENS])])
        self._meter.call("finish", self._forest.finish, PROBE)

    def _append(self, stage: StageKey, number: int) -> None:
        """Note a marker in each tree that learns from the stage."""
        for trail in self._trails:
            if trail.tree.learns_from(stage):
                is_known = self._is_known(trail.tree, number)
                trail.append(number, is_known)
                self.num_refused += not is_known

    def _is_known(self, tree: Tree, number: int) -> bool:
        return self._meter.call(PROBE, self._probe, tree, marker(number))

    def _probe(self, tree: Tree, tokens: Tokens) -> bool:
        """Return True if the tree drafts the marker's end for a new request with the context before it."""
        context, end = tokens[-CONTEXT_TOKENS - END_TOKENS : -END_TOKENS], tokens[-END_TOKENS:]
        self._forest.start(PROBE, tree.seen_from, context[:0], learn=False)
        [draft] = self._forest.step([(PROBE, context)])
        self._forest.finish(PROBE, learn=False)
        return draft.source is tree.source and np.array_equal(draft.token_ids, end)
