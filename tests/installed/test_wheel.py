"""The checks of `make check-wheel` and `make wheels`, on the wheel of this checkout and on bad ones."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.installed import check_wheel
from tests.installed.support.environment import Environment

CORE = "agentspec/_native.cpython-311-x86_64-linux-gnu.so"
GOOD = (*check_wheel.NEEDED, CORE, "agentspec/__init__.py", "agentspec_serving-1.dist-info/METADATA")
PLATFORM = "manylinux_2_28_x86_64"


def wheel_of(folder: Path, names: tuple[str, ...] = GOOD, platform: str = PLATFORM) -> Path:
    path = folder / f"agentspec_serving-1-cp311-cp311-{platform}.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "")
    return path


def test_first_use(installed: Environment, tmp_path: Path) -> None:
    run = installed.run("python", str(check_wheel.SMOKE), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "native core: learns and drafts" in run.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has wheels that no index takes")
def test_the_wheel_of_this_checkout_needs_nothing_but_a_repair(wheel: Path) -> None:
    [problem] = check_wheel.problems(wheel)
    assert "auditwheel repair" in problem


def test_a_good_wheel(tmp_path: Path) -> None:
    assert list(check_wheel.problems(wheel_of(tmp_path))) == []


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (GOOD[1:], "agentspec/py.typed is missing"),
        ((*GOOD, "agentspec/native/core/drafter.cpp"), "agentspec/native/core/drafter.cpp is a source"),
        ((*GOOD, "tests/conftest.py"), "it would install ['tests'] too"),
        (tuple(name for name in GOOD if name != CORE), "its compiled files are [], not the native core only"),
        ((*GOOD, "agentspec_serving.libs/libstdc++.so"), "not the native core only"),
    ],
)
def test_what_a_wheel_may_not_hold(names: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    assert problem in "\n".join(check_wheel.problems(wheel_of(tmp_path, names)))


def test_a_large_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheel_of(tmp_path)
    size = path.stat().st_size
    monkeypatch.setattr(check_wheel, "LIMIT_BYTES", size - 1)
    assert list(check_wheel.problems(path)) == [f"{size} bytes are more than {size - 1}"]
