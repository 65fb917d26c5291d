"""A virtual environment in which tests install packages and run programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 120.0
# these would let a program find packages of the environment that runs the tests
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Environment:
    """A virtual environment in ``folder``, with its packages in ``site_packages``."""

    folder: Path
    site_packages: Path

    @classmethod
    def create(cls, folder: Path, packages: Iterable[Path]) -> Environment:
        """Create an environment with links to ``packages`` in another environment's ``site-packages``."""
        _check_run(
            [_bin("uv"), "venv", "--quiet", "--offline", "--python", sys.executable, str(folder / "venv")]
        )
        [site_packages] = (folder / "venv").glob("lib/python*/site-packages")
        for package in packages:
            (site_packages / package.name).symlink_to(package)
        return cls(folder / "venv", site_packages)

    def install(self, *wheels: Path) -> None:
        """Install wheels without their requirements."""
        self.uv_pip("install", "--no-deps", *map(str, wheels))

    def uv_pip(self, command: str, *arguments: str) -> None:
        """Run ``uv pip`` without the network. It works like ``pip``, but faster."""
        python = str(self.folder / "bin" / "python")
        _check_run([_bin("uv"), "pip", command, "--quiet", "--offline", "--python", python, *arguments])

    def run(self, command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment's ``bin``, in the folder ``cwd``."""
        return subprocess.run(
            [str(self.folder / "bin" / command), *arguments],
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if name not in PYTHON_VARIABLES},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def _bin(command: str) -> str:
    return str(Path(sys.executable).with_name(command))


def _check_run(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
