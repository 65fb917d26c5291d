"""The checkout's folders before an installed package on ``sys.path``, as with ``python -m``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.installed.support.environment import Environment

ROOT = Path(__file__).parents[2]
WHERE = """
from agentspec import _native, adapters, forest, gateway, replay
print(*(module.__file__ for module in (_native, adapters, forest, gateway, replay)), sep="\\n")
"""


def folders(output: str) -> list[Path]:
    return [Path(line) for line in output.splitlines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the checkout's package without a compiled core, as in a fresh clone."""
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "models", "native", "*.so")
    shutil.copytree(ROOT / "agentspec", folder / "agentspec", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_commands_in_the_checkout(installed: Environment) -> None:
    run = installed.run("python", "-m", "agentspec", "--version", cwd=ROOT)
    assert (run.returncode, run.stdout[:10]) == (0, "agentspec "), run.stderr


def test_a_program_that_puts_the_checkout_on_its_path(installed: Environment, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport examples.saving\n{WHERE}")
    run = installed.run("python", str(program), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert all(path.is_relative_to(installed.site_packages) for path in folders(run.stdout))


def test_all_modules_are_those_of_one_place(installed: Environment, checkout: Path) -> None:
    run = installed.run("python", "-c", WHERE, cwd=checkout)
    assert len(folders(run.stdout)) == 5, run.stderr
    assert all(path.is_relative_to(installed.site_packages) for path in folders(run.stdout))


def test_doctor_in_the_checkout(installed: Environment, checkout: Path) -> None:
    said = installed.run("agentspec", "doctor", cwd=checkout).stdout
    assert "ok       package: agentspec-serving" in said
    assert "ok       native core" in said


def test_another_version_is_refused(installed: Environment, checkout: Path) -> None:
    init = checkout / "agentspec" / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "', '__version__ = "9.'))
    run = installed.run("python", "-c", "import agentspec", cwd=checkout)
    sentence = run.stderr.splitlines()[-1]
    assert sentence.startswith(f"ImportError: AgentSpec in {checkout} has no compiled core")
    assert "the installed package is 0." in sentence
    assert sentence.endswith(f"run `pip install -e {checkout}`")


def test_nothing_installed(new_environment: Callable[[], Environment], checkout: Path) -> None:
    run = new_environment().run("python", "-c", "import agentspec", cwd=checkout)
    assert run.stderr.splitlines()[-1].endswith(f"run `pip install -e {checkout}`")


def test_a_package_that_lost_its_core(
    new_environment: Callable[[], Environment], wheel: Path, tmp_path: Path
) -> None:
    environment = new_environment()
    environment.install(wheel)
    [core] = (environment.site_packages / "agentspec").glob("_native*.so")
    core.unlink()
    run = environment.run("python", "-c", "import agentspec", cwd=tmp_path)
    assert run.stderr.splitlines()[-1].endswith("`pip install --force-reinstall --no-deps agentspec-serving`")
