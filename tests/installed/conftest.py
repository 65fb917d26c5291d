"""AgentSpec as users install it: from a wheel, in environments of its own.

The wheel is built once per run of the tests, in the build folder that ``make setup`` left.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentspec.distribution import DISTRIBUTION
from tests.installed.support.environment import Environment

pytest.importorskip("uv", reason="needs uv: pip install uv")
ROOT = Path(__file__).parents[2]
LOCK = ROOT / "build" / "wheel.lock"
BUILD = "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Build the wheel of this checkout. Workers of pytest-xdist share it; all runs share the build folder."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "wheel"
    folder.mkdir(exist_ok=True)
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            command = [sys.executable, "-c", BUILD, str(folder)]
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert run.returncode == 0, run.stdout + run.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def base_packages() -> list[Path]:
    """Return the files and folders in ``site-packages`` of the package's own requirements, without extras."""
    found: dict[str, metadata.Distribution] = {}
    wanted = list(_required(metadata.distribution(DISTRIBUTION)))
    while wanted:
        if (name := wanted.pop()) not in found:
            found[name] = metadata.distribution(name)
            wanted += _required(found[name])
    return [
        Path(str(distribution.locate_file(top)))
        for distribution in found.values()
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    ]


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    for one in map(Requirement, distribution.requires or ()):
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield canonicalize_name(one.name)


@pytest.fixture(scope="session")
def new_environment(
    tmp_path_factory: pytest.TempPathFactory, base_packages: list[Path]
) -> Callable[[], Environment]:
    """Return a function that makes environments with the package's requirements only."""
    return lambda: Environment.create(tmp_path_factory.mktemp("environment"), base_packages)


@pytest.fixture(scope="session")
def installed(new_environment: Callable[[], Environment], wheel: Path) -> Environment:
    """Install the wheel in an environment that no test changes."""
    environment = new_environment()
    environment.install(wheel)
    return environment
