"""Another project's distribution ``agentspec`` next to ours: doctor reports it, and its advice repairs it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.installed.support.environment import Environment

METADATA = (
    "Metadata-Version: 2.1\nName: agentspec\nVersion: 0.3.1\nSummary: Turn traffic into OpenAPI specs\n"
)
OTHER_FILES = {
    "agentspec/__init__.py": "__version__ = '0.2.0'\n",
    "agentspec/cli.py": "def app():\n    print('the other one')\n",
    "agentspec-0.3.1.dist-info/METADATA": METADATA,
    "agentspec-0.3.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "agentspec-0.3.1.dist-info/entry_points.txt": "[console_scripts]\nagentspec = agentspec.cli:app\n",
}


@pytest.fixture(scope="module")
def other_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("other") / "agentspec-0.3.1-py3-none-any.whl"
    record = "agentspec-0.3.1.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as file:
        for name, text in OTHER_FILES.items():
            file.writestr(name, text)
        file.writestr(record, "".join(f"{name},,\n" for name in [*OTHER_FILES, record]))
    return path


def repair(environment: Environment, advice: str, wheel: Path) -> None:
    """Follow doctor's advice with uv."""
    assert f"pip uninstall -y agentspec && pip install --force-reinstall --no-deps {wheel}" in advice
    environment.uv_pip("uninstall", "agentspec")
    environment.uv_pip("install", "--reinstall", "--no-deps", str(wheel))


def test_doctor_where_we_came_last(
    new_environment: Callable[[], Environment], other_wheel: Path, wheel: Path, tmp_path: Path
) -> None:
    environment = new_environment()
    environment.install(other_wheel)
    environment.install(wheel)
    found = environment.run("agentspec", "doctor", cwd=tmp_path)
    assert found.returncode == 1
    assert "problem  package: the distribution agentspec (0.3.1, 'Turn traffic into OpenAPI" in found.stdout
    repair(environment, found.stdout, wheel)
    assert (
        "ok       package: agentspec-serving" in environment.run("agentspec", "doctor", cwd=tmp_path).stdout
    )


def test_any_command_where_the_other_project_came_last(
    new_environment: Callable[[], Environment], other_wheel: Path, wheel: Path, tmp_path: Path
) -> None:
    environment = new_environment()
    environment.install(wheel)
    environment.install(other_wheel)
    assert environment.run("agentspec", cwd=tmp_path).stdout == "the other one\n"  # the command is not ours
    found = environment.run("python", "-m", "agentspec", "doctor", cwd=tmp_path)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    repair(environment, found.stderr, wheel)
    assert environment.run("agentspec", "--version", cwd=tmp_path).stdout.startswith("agentspec ")


def test_a_folder_of_that_name_where_doctor_runs(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "agentspec").mkdir()
    (tmp_path / "agentspec" / "__init__.py").write_text("")
    found = installed.run("agentspec", "doctor", cwd=tmp_path)
    assert f"problem  package: here Python imports agentspec from {tmp_path / 'agentspec'}" in found.stdout


def test_a_namespace_of_that_name_hides_nothing(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "agentspec").mkdir()  # a folder without modules, such as a folder of notes
    assert "ok       package: " in installed.run("agentspec", "doctor", cwd=tmp_path).stdout
