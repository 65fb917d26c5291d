"""The C++ tests of the core under sanitizers, without Python."""

from __future__ import annotations

import pytest

from tests.native.support.cpp_build import CppBuild


def test_cpp_tests_are_clean_under_asan_and_ubsan(sanitized):
    sanitized.ctest("--parallel", "2")


@pytest.mark.slow
def test_threads_are_clean_under_tsan():
    watched = CppBuild("watched")
    settings = ["-DAGENTSPEC_SANITIZE=thread", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-O1"]
    watched.build(*settings, target="threaded_tests")
    watched.ctest("--label-regex", "threads")
