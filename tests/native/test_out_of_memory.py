"""Memory that runs out at every allocation of the core in turn."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the linker has to catch what is allocated")


@pytest.mark.slow
def test_every_allocation_may_fail(optimized):
    optimized.build("-DCMAKE_BUILD_TYPE=Release", target="test_out_of_memory")
    report = optimized.run("test_out_of_memory")
    assert report.count("allocations failed in turn") == 3
