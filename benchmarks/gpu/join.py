"""Join the parts of a pack into one folder, and check it file by file: ``python join.py [--to DIR]``.

Needs only Python. The parts and manifest.json lie beside this file. Builds AgentSpec's native core if the
pack has none for this Python; that needs CMake, Ninja and a C++ compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CORE = f"agentspec/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
SOURCES = "native"
BLOCK_BYTES = 1 << 20


class Parts(io.RawIOBase):
    """The parts of a file, read as if they were one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._ends: list[int] = []
        for path in paths:
            self._ends.append((self._ends[-1] if self._ends else 0) + path.stat().st_size)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte of the whole."""
        self._at = offset + (0, self._at, self._ends[-1])[whence]
        return self._at

    def tell(self) -> int:
        """Return the position in the whole."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read from the part at this position."""
        for path, end in zip(self._paths, self._ends, strict=True):
            if self._at < end:
                with path.open("rb") as file:
                    file.seek(self._at - end, io.SEEK_END)
                    count = file.readinto(memoryview(buffer)) or 0
                self._at += count
                return count
        return 0


def main() -> int:
    """Join, check, and build; return the exit status."""
    parser = argparse.ArgumentParser(prog="python join.py", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("joined"), metavar="DIR", help="default: joined")
    folder, to = Path(__file__).resolve().parent, parser.parse_args().to
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        num_files = join(folder, manifest, to)
        if not (to / CORE).exists():
            print(f"this Python has no {CORE} in the pack: building it", flush=True)
            build_core(to)
    except (OSError, ValueError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{num_files} files in {to}, each as packed: set PYTHONPATH={to.resolve()}")
    return 0


def join(folder: Path, manifest: Mapping[str, Any], to: Path) -> int:
    """Unzip the parts into a folder; return the number of files.

    Raises:
        ValueError: a part is missing or damaged, or a file is not as packed.
    """
    parts = [folder / one["name"] for one in manifest["parts"]]
    missing = [path.name for path in parts if not path.exists()]
    if missing:
        raise ValueError(f"parts are missing in {str(folder)!r}: {', '.join(missing)}")
    for path, one in zip(parts, manifest["parts"], strict=True):
        if file_sha256(path) != one["sha256"]:
            raise ValueError(f"{str(path)!r} is damaged: copy it again")
    with zipfile.ZipFile(io.BufferedReader(Parts(parts), BLOCK_BYTES)) as archive:
        archive.extractall(to)
    for name, wanted in manifest["files"].items():
        if file_sha256(to / name) != wanted:
            raise ValueError(f"{str(to / name)!r} is not as packed: is the disk full?")
    return len(manifest["files"])


def build_core(to: Path) -> None:
    """Build the native core for this Python from the sources in the folder.

    Raises:
        ValueError: CMake or Ninja is missing.
        CalledProcessError: the build failed.
    """
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise ValueError(f"there is no {tool} on the path: AgentSpec's native core can't be built")
    build = to / SOURCES / "build"
    configure = ["cmake", "-G", "Ninja", "-S", str(to / SOURCES), "-B", str(build)]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={_pybind11(to)}"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(build)], check=True)
    subprocess.run(["cmake", "--install", str(build), "--prefix", str(to)], check=True)


def _pybind11(to: Path) -> Path:
    return (to / "pybind11" / "share" / "cmake" / "pybind11").resolve()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
