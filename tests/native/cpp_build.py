"""A CMake build of the native core and its C++ tests, without Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CORE = Path(__file__).parents[2] / "agentspec" / "native"
SETTINGS = ("-DAGENTSPEC_PYTHON=OFF", "-DAGENTSPEC_TESTS=ON")


@dataclass(frozen=True)
class CppBuild:
    """One build directory, configured by the core's own options."""

    directory: Path

    def configure(self, *settings: str) -> None:
        run(tool("cmake"), "-S", str(CORE), "-B", str(self.directory), *SETTINGS, *settings)

    def build(self, target: str = "all") -> None:
        run(tool("cmake"), "--build", str(self.directory), "--parallel", "2", "--target", target)

    def ctest(self, *arguments: str) -> None:
        """Runs the tests that were built; there has to be one, and all have to pass."""
        command = [tool("ctest"), "--test-dir", str(self.directory), "--output-on-failure"]
        run(*command, "--no-tests=error", *arguments)

    def run(self, name: str, *arguments: str) -> str:
        """Runs one of the test programs and returns its output."""
        return run(str(self.directory / "cpp_tests" / name), *arguments)


def tool(name: str) -> str:
    """The tool next to this Python, where pip puts it, or the system's."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is needed: pip install cmake"
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout
