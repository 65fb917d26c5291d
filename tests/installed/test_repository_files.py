"""Workflows, hooks and the citation: they call what exists, and name the versions that the project names."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import agentspec
from agentspec.doctor.packages import NEWEST_TRIED_PYTHON, OLDEST_PYTHON

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TRIED = [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_TRIED_PYTHON[1] + 1)]
MAKE = re.compile(r"make (?P<target>\S+)(?: [A-Z_]+=\S+)*")
PINNED = re.compile(r"[\w-]+/[\w-]+@(?:v\d+|release/v1|[0-9a-f]{40})")

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="the source distribution has no .github")


def read(path: Path | str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))


JOBS = [
    pytest.param(job, id=f"{path.stem}-{name}")
    for path in WORKFLOWS
    for name, job in read(path)["jobs"].items()
]


def matrices(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of ``matrix`` in each run of a job."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    included = matrix.pop("include", [])
    product = [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]
    return product + included


def expanded(text: str, matrix: dict[str, Any]) -> str:
    return re.sub(r"\$\{\{ matrix\.([\w-]+) \}\}", lambda found: str(matrix[found[1]]), text)


@pytest.mark.parametrize("job", JOBS)
def test_every_command_is_a_target_of_the_makefile(job: dict[str, Any]) -> None:
    for step, matrix in itertools.product(job.get("steps", ()), matrices(job)):
        if "run" in step:
            found = MAKE.fullmatch(expanded(step["run"], matrix))
            assert found, step["run"]
            assert found["target"] in make_targets()


@pytest.mark.parametrize("job", JOBS)
def test_actions_are_pinned_and_keep_no_credentials(job: dict[str, Any]) -> None:
    for step in job.get("steps", ()):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert PINNED.fullmatch(step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("job", JOBS)
def test_every_job_ends(job: dict[str, Any]) -> None:
    assert "uses" in job or 0 < job["timeout-minutes"] <= 90


def test_only_the_upload_may_write() -> None:
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert workflow["concurrency"]["group"]
        for name, job in workflow["jobs"].items():
            granted = job.get("permissions", {"contents": "read"})
            is_upload = (path.stem, name) == ("release", "publish")
            assert granted == ({"id-token": "write"} if is_upload else {"contents": "read"})


def test_every_python_that_is_named_is_tested_and_has_wheels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == TRIED
    assert read(".github/workflows/wheels.yml")["jobs"]["check"]["strategy"]["matrix"]["python"] == TRIED
    built = project["tool"]["cibuildwheel"]["build"]
    assert built == " ".join(f"cp{version.replace('.', '')}-*" for version in TRIED)


def test_the_citation_names_this_version() -> None:
    citation = read("CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"] == agentspec.__version__
    assert citation["license"] == project["license"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The files of a version that is ready."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.0 (2027-01-01)\n")
    return tmp_path


def check_release(folder: Path, tag: str) -> tuple[bool, str]:
    """Whether ``make check-release`` takes the files in ``folder``, and its output."""
    command = ["make", "-s", "--no-print-directory", "-f", str(ROOT / "Makefile"), "-C", str(folder)]
    command += ["check-release"]
    env = {"PATH": os.environ["PATH"], "TAG": tag}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return run.returncode == 0, run.stdout


def test_a_release_that_is_ready(release: Path) -> None:
    assert check_release(release, "v1.2.0") == (True, "")


@pytest.mark.parametrize("tag", ["", "1.2.0", "v1.2.1", "v1.2.0'; touch made; '", "$(shell touch made)"])
def test_a_tag_of_another_version(release: Path, tag: str) -> None:
    is_taken, said = check_release(release, tag)
    assert (is_taken, said) == (False, f"TAG is '{tag}', but pyproject.toml has version 1.2.0\n")
    assert not (release / "made").exists()


@pytest.mark.parametrize("heading", ["## Unreleased", "## 1.2.01", "### 1.2.0"])
def test_a_release_without_its_section_in_the_changelog(release: Path, heading: str) -> None:
    (release / "CHANGELOG.md").write_text(f"{heading}\n")
    assert check_release(release, "v1.2.0") == (False, "CHANGELOG.md has no section '## 1.2.0'\n")
