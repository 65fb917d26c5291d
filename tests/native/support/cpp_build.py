"""A CMake build of the native core and its C++ tests, without Python.

Builds stay in ``build/cpp_tests``, so only changes since the last run are compiled again. With
``TEST_CORE=whole``, as in ``make test-core``, the long tests run in full. Otherwise a tenth of each runs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
CORE = ROOT / "agentspec" / "native"
# headers are most of the work, so several sources are compiled as one
UNITY = ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=8")
IS_THOROUGH = os.environ.get("TEST_CORE") == "whole"
SETTINGS = (
    *("-DAGENTSPEC_PYTHON=OFF", "-DAGENTSPEC_TESTS=ON", *UNITY),
    f"-DAGENTSPEC_THOROUGH={'ON' if IS_THOROUGH else 'OFF'}",
)


@dataclass(frozen=True)
class CppBuild:
    """One build directory, configured by the core's own options. Concurrent runs wait for each other."""

    name: str

    @property
    def directory(self) -> Path:
        """Path of the build directory."""
        return ROOT / "build" / "cpp_tests" / self.name

    def build(self, *settings: str, target: str = "all") -> None:
        """Configure, and compile all that is out of date."""
        with self._alone():
            run(tool("cmake"), "-S", str(CORE), "-B", str(self.directory), *SETTINGS, *settings)
            run(tool("cmake"), "--build", str(self.directory), "--parallel", "2", "--target", target)

    def ctest(self, *arguments: str) -> None:
        """Run the tests that were built. There must be at least one, and all must pass."""
        command = [tool("ctest"), "--test-dir", str(self.directory), "--output-on-failure"]
        with self._alone():
            run(*command, "--no-tests=error", *arguments)

    def run(self, name: str, *arguments: str) -> str:
        """Run one of the test programs and return its output."""
        return run(str(self.directory / "cpp_tests" / name), *arguments)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def tool(name: str) -> str:
    """Return the path of the tool next to this Python, as pip installs it, or of the system's."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is needed: pip install cmake"
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout
