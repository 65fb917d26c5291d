"""What is forgotten first: outputs whose tokens occur nowhere else, learned from time to time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from agentspec import Forest
from agentspec.benchmarks.churn.meter import Meter
from agentspec.benchmarks.churn.scopes import Scope, Tree
from agentspec.forest import Tokens

FIRST_TOKEN = 1 << 20  # beyond every vocabulary
MARKER_TOKENS = 16
CONTEXT_TOKENS = 4
PER_STAGE = 2
PROBE = "probe"


@dataclass(slots=True)
class _Trail:
    """A tree's markers, oldest first, and how many of the oldest it has forgotten."""

    tree: Tree
    markers: list[Tokens] = field(default_factory=list)
    num_forgotten: int = 0


class Markers:
    """Learns markers into every tree, and asks which ones it still knows by drafting from it."""

    def __init__(self, forest: Forest, scope: Scope, meter: Meter) -> None:
        self._forest = forest
        self._meter = meter
        self._stages = scope.stages()
        self._trails = [_Trail(tree) for tree in scope.trees()]
        self._numbers = count()
        self.is_in_order = True
        self.num_refused = 0

    def learn(self) -> None:
        """Some new ones for each stage; each goes into the stage's tree and into those of its parents."""
        for stage in self._stages * PER_STAGE:
            begin = FIRST_TOKEN + next(self._numbers) * MARKER_TOKENS
            marker = np.arange(begin, begin + MARKER_TOKENS, dtype=np.int32)
            self._meter.call("learn", self._forest.learn, stage, marker)
            for trail in self._trails:
                if trail.tree.learns_from(stage):
                    trail.markers.append(marker)
                    self.num_refused += not self._is_known(trail.tree, marker)

    def check(self) -> None:
        """Note whether every tree knows exactly the newest ones, and none that it had forgotten."""
        for trail in self._trails:
            known = [self._is_known(trail.tree, marker) for marker in trail.markers]
            num_forgotten = len(known) - sum(known)
            if any(known[:num_forgotten]) or num_forgotten < trail.num_forgotten:
                self.is_in_order = False
            trail.num_forgotten = num_forgotten

    @property
    def num_known(self) -> int:
        """Markers that were known at the last check, over all trees."""
        return sum(len(trail.markers) for trail in self._trails) - self.num_forgotten

    @property
    def num_forgotten(self) -> int:
        """Markers that were not."""
        return sum(trail.num_forgotten for trail in self._trails)

    def _is_known(self, tree: Tree, marker: Tokens) -> bool:
        return self._meter.call(PROBE, self._probe, tree, marker)

    def _probe(self, tree: Tree, marker: Tokens) -> bool:
        """Whether the tree drafts the marker's next token for a new request that began like the marker."""
        context, following = marker[:CONTEXT_TOKENS], marker[CONTEXT_TOKENS]
        self._forest.start(PROBE, tree.seen_from, context[:0], learn=False)
        [draft] = self._forest.step([(PROBE, context)])
        self._forest.finish(PROBE, learn=False)
        return draft.source is tree.source and draft.token_ids[:1].tolist() == [following]
