"""An engine with one live request, whose stage has learned one text."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentspec._native import DraftOptions, ForestCore, LiveRows
from agentspec.draft import Source

EOS = 2
TEXT = [10, 11, 12, 13, 14, 15, EOS]
WIDTH = 32


class Engine:
    """One request with a prompt of one token, in its own row."""

    def __init__(self, most_tokens: int = WIDTH) -> None:
        self.core = ForestCore(16, 1 << 20)
        group = self.core.create_group(1 << 20)
        index = self.core.create_index(group, 1 << 20)
        self.core.learn(np.array([index], np.uint64), np.array(TEXT, np.int32))
        options = DraftOptions(False, 8, 4.0, 1, 0.0)
        none = np.empty(0, np.int32)
        self.core.start(7, group, np.array([1], np.int32), none, [(index, Source.STAGE)], True, options)
        self.rows = LiveRows(self.core)
        self.rows.add("r", 1, most_tokens, [EOS, 99])
        self.rows.enter("r", 7)
        self.ends = np.array([1, 0], np.int32)
        self.index = index

    def step(
        self, tokens: list[int], verified: dict[str, list[int]] | None = None, now_s: float = 0.0
    ) -> Any:
        self.ends[0] += len(tokens)
        return self.rows.step(["r", "stranger"], [tokens, [5]], self.ends, verified or {}, 8, 0.0, now_s)

    def learned(self) -> int:
        self.core.settle()
        return self.core.index_size(self.index)[1] - len(TEXT)
