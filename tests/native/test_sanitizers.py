"""The C++ tests, built with AddressSanitizer and UBSan: the core alone, without Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "agentspec" / "native"
SANITIZED = "-DAGENTSPEC_SANITIZE=ON"


def tool(name: str) -> str:
    """The tool next to this Python, where pip puts it, or the system's."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is needed: pip install cmake"
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.mark.slow
def test_cpp_tests_are_clean_under_asan_and_ubsan(tmp_path):
    settings = ["-DAGENTSPEC_PYTHON=OFF", "-DAGENTSPEC_TESTS=ON", "-DCMAKE_BUILD_TYPE=Debug", SANITIZED]
    run(tool("cmake"), "-S", str(SOURCE), "-B", str(tmp_path), *settings, "-DCMAKE_CXX_FLAGS=-O1")
    run(tool("cmake"), "--build", str(tmp_path), "--parallel", "2")
    report = run(tool("ctest"), "--test-dir", str(tmp_path), "--output-on-failure")
    assert "100% tests passed" in report
