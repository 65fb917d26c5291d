"""Failures of the core's allocations, one after the other: all of them, or some hundreds of each script."""

from __future__ import annotations

import sys

import pytest

from tests.native.support.cpp_build import IS_THOROUGH

MOST_RUNS = 5000 if IS_THOROUGH else 500

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the linker has to catch what is allocated")


@pytest.mark.slow
def test_any_allocation_may_fail(optimized):
    optimized.build("-DCMAKE_BUILD_TYPE=Release", target="test_out_of_memory")
    report = optimized.run("test_out_of_memory", str(MOST_RUNS))
    assert report.count("allocations failed in turn") == 3
