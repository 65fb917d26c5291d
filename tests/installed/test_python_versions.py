"""The required Python version and the latest one tested are the same in every file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentspec.doctor.packages import NEWEST_TRIED_PYTHON, OLDEST_PYTHON

ROOT = Path(__file__).parents[2]
TRIED = [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_TRIED_PYTHON[1] + 1)]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_package_names_the_versions_that_were_tried(pyproject: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: "
    classifiers = pyproject["project"]["classifiers"]
    assert [one.removeprefix(prefix) for one in classifiers if one.startswith(prefix)] == TRIED


def test_a_newer_one_is_not_refused(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["requires-python"] == f">={TRIED[0]}"


def test_the_sources_are_checked_for_the_oldest(pyproject: dict[str, Any]) -> None:
    assert pyproject["tool"]["mypy"]["python_version"] == TRIED[0]
    assert pyproject["tool"]["ruff"]["target-version"] == f"py{TRIED[0].replace('.', '')}"
