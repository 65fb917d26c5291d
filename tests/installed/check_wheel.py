"""Checks of built wheels: `python tests/installed/check_wheel.py dist/*.whl`.

Each wheel must hold what belongs into it, for a platform that an index accepts. The one for this Python is
installed without a compiler, together with all that it requires, and used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

SMOKE = Path(__file__).with_name("smoke.py")
LIMIT_BYTES = 10_000_000
NEEDED = ("agentspec/py.typed", "agentspec/_native.pyi", "agentspec/models/agentspec_sql/model.safetensors")
SOURCES = (".cpp", ".hpp", "CMakeLists.txt")


def problems(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel, judged by its name and content."""
    _, _, _, tags = parse_wheel_filename(wheel.name)
    if any(tag.platform.startswith("linux_") for tag in tags):
        yield "an index takes no linux_* wheel: auditwheel repair names the oldest system that it runs on"
    if wheel.stat().st_size > LIMIT_BYTES:
        yield f"{wheel.stat().st_size} bytes are more than {LIMIT_BYTES}"
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    extensions = [name for name in names if name.endswith(".so")]
    if len(extensions) != 1 or not extensions[0].startswith("agentspec/_native."):
        yield f"its compiled files are {extensions}, not the native core only"
    yield from (f"{name} is missing" for name in NEEDED if name not in names)
    yield from (f"{name} is a source" for name in names if name.endswith(SOURCES))
    if tops := {name.partition("/")[0] for name in names if ".dist-info/" not in name} - {"agentspec"}:
        yield f"it would install {sorted(tops)} too"


def for_this_python(wheels: Iterable[Path]) -> Path | None:
    """The wheel that pip would choose here, or None."""
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    ranked = [
        (min(ranks[tag] for tag in tags), wheel)
        for wheel in wheels
        if (tags := parse_wheel_filename(wheel.name)[3] & ranks.keys())
    ]
    return min(ranked)[1] if ranked else None


def install_and_use(wheel: Path, folder: Path) -> None:
    """In an environment in which no program can be found but its own: no compiler, no CMake."""
    venv.create(folder, with_pip=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PATH": str(folder / "bin"), "CC": "false", "CXX": "false", "PIP_ONLY_BINARY": ":all:"}
    for command in (["-m", "pip", "install", "--quiet", str(wheel.resolve())], [str(SMOKE)]):
        subprocess.run([str(folder / "bin" / "python"), *command], cwd=folder, env=environment, check=True)


def main(wheels: list[Path]) -> int:
    found = [f"{wheel.name}: {problem}" for wheel in wheels for problem in problems(wheel)]
    if (fitting := for_this_python(wheels)) is None:
        found.append(f"none of {[wheel.name for wheel in wheels]} is for this Python and system")
    if found or fitting is None:
        print(*found, sep="\n", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        install_and_use(fitting, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
