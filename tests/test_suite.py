"""Rules for the tests themselves: no clock decides an outcome, and any order works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from tests import conftest

ROOT = Path(__file__).parents[1]
EXAMPLE = """
import gc, sys

def test_one(): pass
def test_two(): assert sys.getswitchinterval() == 0.25
def test_three(): pass
"""
HOARDER = """
kept = []

def test_small(): pass
def test_large(): kept.append(b"x" * (64 << 20))
def test_after(): pass
"""


def run_of(folder: Path, code: str, *options: str, **environment: str) -> str:
    """Return pytest's output for these tests with our own conftest."""
    (folder / "test_example.py").write_text(code)
    (folder / "conftest.py").write_text(
        f"from tests.conftest import *\nfrom tests import conftest\n{options[0] if options else ''}\n"
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    ours = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    own = (conftest.SEED_VARIABLE, conftest.SWITCH_VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    run = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env={**inherited, **ours, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return run.stdout + run.stderr


def order(report: str) -> list[str]:
    return re.findall(r"test_example\.py::(\w+) PASSED", report)


def test_no_example_has_to_be_quick() -> None:
    assert hypothesis.settings.default is not None
    assert hypothesis.settings.default.deadline is None
    own = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path for path in own if re.search(r"settings\([^)]*deadline=[^N]", path.read_text("utf-8"))] == []


def test_a_seed_is_an_order_and_says_so(tmp_path: Path) -> None:
    named = {conftest.SWITCH_VARIABLE: "0.25"}
    plain = run_of(tmp_path, EXAMPLE, **named)
    assert order(plain) == ["test_one", "test_two", "test_three"], plain
    reports = [run_of(tmp_path, EXAMPLE, **named, **{conftest.SEED_VARIABLE: seed}) for seed in "112"]
    orders = [order(report) for report in reports]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(order(plain))
    assert f"{conftest.SEED_VARIABLE}=2" in reports[2]


@pytest.mark.skipif(not conftest.resident_mib(), reason="needs psutil")
def test_memory_that_a_test_keeps_is_an_error_of_that_test(tmp_path: Path) -> None:
    limit = "conftest.MOST_RESIDENT_MIB = conftest.resident_mib() + 48"
    report = run_of(tmp_path, HOARDER, limit)
    assert re.findall(r"^ERROR test_example.py::(\w+)", report, re.MULTILINE) == ["test_large"], report
    assert "most memory: this process" in report


def test_no_test_imports_another() -> None:
    """Shared helpers are in a folder's ``support`` package."""
    imports = re.compile(r"^\s*(?:from|import) (?:[\w.]*\.)?test_\w+", re.MULTILINE)
    files = [path for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text("utf-8"))]
    assert files == []
