"""An engine with one live request, whose stage has learned one text."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentspec._native import DraftOptions, ForestCore, LiveRows, RowStep
from agentspec.draft import Source

EOS = 2
TEXT = [10, 11, 12, 13, 14, 15, EOS]
WIDTH = 32
K = 6


class Engine:
    """One request with a prompt of one token, in its own row."""

    def __init__(self, most_tokens: int = WIDTH) -> None:
        self.core = ForestCore(16, 1 << 20)
        group = self.core.create_group(1 << 20)
        index = self.core.create_index(group, 1 << 20)
        self.core.learn(np.array([index], np.uint64), np.array(TEXT, np.int32))
        options = DraftOptions(False, 8, 4.0, 1, 0.0)
        none = np.empty(0, np.int32)
        self.core.start(7, group, np.array([1], np.int32), none, [(index, Source.STAGE)], options)
        self.rows = LiveRows(self.core)
        self.rows.add("r", 1, most_tokens, [EOS, 99])
        self.rows.enter("r", 7)
        self.index = index

    def learned(self) -> int:
        """Return how many tokens of the request the stage's tree has learned."""
        self.core.settle()
        return self.core.index_size(self.index)[1] - len(TEXT)


class Device:
    """Memory of an engine with two rows, of which the first is the request's."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self.rows = self.engine.rows
        self.num_sampled = np.zeros(2, np.int32)
        self.sampled = np.full((2, 1 + K), -1, np.int64)
        self.drafts = np.full((2, K), -1, np.int64)
        self.chances = np.full((2, K), -1, np.float32)

    def plan(self, num_slots: int = 0, **changes: Any) -> RowStep:
        """Plan a step that verifies so many slots of the request."""
        arguments = {
            "rows": self.rows,
            "names": ["r", "stranger"],
            "verified": {"r": [-1] * num_slots},
            "num_sampled": self.num_sampled,
            "sampled": self.sampled,
            "drafts": self.drafts,
            "chances": self.chances,
            "min_prob": 0.0,
        }
        return RowStep(**{**arguments, **changes})

    def sample(self, *tokens: int) -> None:
        """Have the samples of the step arrive: these for the request, and one for the other row."""
        self.num_sampled[:] = len(tokens), 1
        self.sampled[0, : len(tokens)] = tokens
        self.sampled[1, 0] = 77

    def step(self, *tokens: int, num_slots: int = 0, **changes: Any) -> RowStep:
        """Run a step that samples these tokens."""
        self.sample(*tokens)
        step = self.plan(num_slots, **changes)
        step.run()
        return step
