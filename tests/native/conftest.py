"""The builds of the C++ tests that several test files share."""

from __future__ import annotations

import pytest

from tests.native.support.cpp_build import CppBuild


@pytest.fixture(scope="session")
def sanitized() -> CppBuild:
    """Everything, the fuzz target included, under AddressSanitizer and UBSan."""
    made = CppBuild("sanitized")
    settings = ["-DAGENTSPEC_SANITIZE=address", "-DAGENTSPEC_FUZZ=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    made.build(*settings, "-DCMAKE_CXX_FLAGS=-O1")
    return made


@pytest.fixture(scope="session")
def optimized() -> CppBuild:
    """As it is installed; a test builds what it needs."""
    return CppBuild("optimized")
