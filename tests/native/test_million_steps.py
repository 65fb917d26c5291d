"""A million drafts of the optimized core compared with Algorithm 1, run by brute force."""

from __future__ import annotations

import pytest

from tests.native.support.cpp_build import IS_THOROUGH

NUM_DRAFTS = 1_000_000 if IS_THOROUGH else 100_000


@pytest.mark.slow
def test_drafts_equal_brute_force(optimized):
    optimized.build("-DCMAKE_BUILD_TYPE=Release", target="test_million_steps")
    num_drafts, _, rest = optimized.run("test_million_steps", str(NUM_DRAFTS)).partition(" ")
    assert int(num_drafts) >= NUM_DRAFTS
    assert rest.startswith("drafts equal brute force")
