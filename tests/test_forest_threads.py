from __future__ import annotations

import os

import numpy as np
import pytest

from agentspec import Forest, StageKey


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="lists threads as Linux does")
def test_threads_start_once_and_a_forest_works_with_them() -> None:
    forest, stage = Forest(), StageKey.parse("a/b")
    forest.start_threads()
    before = set(os.listdir("/proc/self/task"))
    forest.start_threads()
    assert set(os.listdir("/proc/self/task")) <= before
    forest.learn(stage, np.arange(1, 9, dtype=np.int32))
    forest.start("request", stage, np.array([1, 2, 3], dtype=np.int32))
    assert list(forest.draft("request").token_ids[:2]) == [4, 5]
