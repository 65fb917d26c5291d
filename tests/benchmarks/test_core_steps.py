"""How drafts are counted."""

from __future__ import annotations

import numpy as np

from agentspec.benchmarks.core.steps import Counts


def test_tokens_are_the_same_at_the_same_place() -> None:
    counts = Counts()
    ours = [np.array([1, 2, 3], np.int32), np.array([7, 8], np.int32), np.array([], np.int32)]
    counts.add({"ours": ours, "peer": [[1, 2, 4, 5], [8, 7], [1]]})
    counts.add({"ours": [[9]], "peer": [[9]]})
    assert counts.drafted == {"ours": 6, "peer": 8}
    assert counts.agreed["ours"] == 3


def test_without_a_peer_nobody_agrees() -> None:
    counts = Counts()
    counts.add({"ours_1_thread": [[1, 2]], "ours_2_threads": [[1, 2]]})
    assert counts.drafted == {"ours_1_thread": 2, "ours_2_threads": 2}
    assert not counts.agreed
