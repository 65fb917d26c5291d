"""The source distribution has all files for building, testing and reading, and no stray files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = "agentspec/models/agentspec_sql/model.safetensors"
LIMIT_BYTES = 5_000_000
FOLDERS = {"adapters", "agentspec", "benchmarks", "deploy", "docs", "examples", "gateway", "tests"}
FILES = {
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
}
GENERATED = {"PKG-INFO"}
LYING_ABOUT = (
    "notes.txt",
    "out/a.json",
    "build/x/a.o",
    ".venv/a.py",
    "dist/a.whl",
    "shared/traces/a.jsonl",
    "agentspec/_native.so",
    "gateway/__pycache__/a.pyc",
    "benchmarks/results/a.json",
)
BUILD_SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
# without compiling: the other wheel was built from the same C++
BUILD_WHEEL = (
    "import sys; from scikit_build_core.build import build_wheel; "
    "build_wheel(sys.argv[1], {'wheel.cmake': 'false', 'wheel.platlib': 'true'})"
)


def build(code: str, checkout: Path, folder: Path) -> Path:
    """Build ``checkout`` into ``folder`` and return the file."""
    command = [sys.executable, "-c", code, str(folder)]
    run = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    [built] = folder.iterdir()
    return built


def content(sdist: Path) -> dict[str, int]:
    """Return the sizes in bytes, by path."""
    with tarfile.open(sdist) as file:
        return {one.name.partition("/")[2]: one.size for one in file.getmembers() if not one.isdir()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(BUILD_SDIST, ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    return folder


def git_files(*options: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    return {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()}


def test_what_lies_at_the_top(sdist: Path) -> None:
    assert {name.partition("/")[0] for name in content(sdist)} == FOLDERS | FILES | GENERATED


def test_nothing_is_ignored_by_git_and_no_source_is_left_out(sdist: Path) -> None:
    names = set(content(sdist)) - GENERATED
    assert names <= git_files("--cached", "--others", "--exclude-standard")
    left_out = git_files() - names
    assert {name for name in left_out if name.partition("/")[0] in FOLDERS} == {
        name for name in left_out if name.startswith("benchmarks/results/")
    }


def test_no_file_but_the_model_is_large(sdist: Path) -> None:
    assert {name for name, size in content(sdist).items() if size > LIMIT_BYTES} == {MODEL}


def test_what_lies_about_stays_out(sdist: Path, unpacked: Path, tmp_path: Path) -> None:
    for name in LYING_ABOUT:
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_text("")
    (tmp_path / "again").mkdir()
    assert content(build(BUILD_SDIST, unpacked, tmp_path / "again")).keys() == content(sdist).keys()


def test_a_wheel_of_it_has_what_a_wheel_of_the_checkout_has(
    unpacked: Path, wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "wheel").mkdir()
    with zipfile.ZipFile(build(BUILD_WHEEL, unpacked, tmp_path / "wheel")) as file:
        names = set(file.namelist())
    with zipfile.ZipFile(wheel) as file:
        assert names == {name for name in file.namelist() if not name.startswith("agentspec/_native.cpython")}


def test_its_build_is_complete(unpacked: Path, tmp_path: Path) -> None:
    if not (cmake := shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")):
        pytest.skip("needs cmake: pip install cmake")
    import pybind11

    options = [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    command = [cmake, "-S", str(unpacked / "agentspec/native"), "-B", str(tmp_path / "build"), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
