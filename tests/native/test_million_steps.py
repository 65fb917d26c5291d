"""A million drafts of the optimized core against Algorithm 1 by brute force."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_a_million_drafts_equal_brute_force(optimized):
    optimized.build("-DCMAKE_BUILD_TYPE=Release", target="test_million_steps")
    report = optimized.run("test_million_steps", "1000000")
    assert "drafts equal brute force" in report
