"""Builds of the C++ tests, shared by several test files."""

from __future__ import annotations

import pytest

from tests.native.support.cpp_build import CppBuild


@pytest.fixture(scope="session")
def sanitized() -> CppBuild:
    """Build everything, including the fuzz target, with AddressSanitizer and UBSan."""
    made = CppBuild("sanitized")
    settings = ["-DAGENTSPEC_SANITIZE=address", "-DAGENTSPEC_FUZZ=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    made.build(*settings, "-DCMAKE_CXX_FLAGS=-O1")
    return made


@pytest.fixture(scope="session")
def optimized() -> CppBuild:
    """Return the optimized build, as it is installed. Each test builds the targets it needs."""
    return CppBuild("optimized")
