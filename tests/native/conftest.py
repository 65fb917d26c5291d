"""The builds of the C++ tests that several test files share."""

from __future__ import annotations

import pytest
from cpp_build import CppBuild


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> CppBuild:
    """Everything, the fuzz target included, under AddressSanitizer and UBSan."""
    made = CppBuild(tmp_path_factory.mktemp("sanitized"))
    settings = ["-DAGENTSPEC_SANITIZE=address", "-DAGENTSPEC_FUZZ=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    made.configure(*settings, "-DCMAKE_CXX_FLAGS=-O1")
    made.build()
    return made
