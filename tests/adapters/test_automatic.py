"""``auto()`` in subprocesses, with frameworks imported before and after it, and under ``agentspec run``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentspec.adapters
from agentspec.adapters import auto
from agentspec.errors import ConfigError, StageError

STARTUP = Path(agentspec.adapters.__file__).with_name("startup")
IS_TAGGED = """
def is_tagged():
    from openai._base_client import BaseClient
    return hasattr(BaseClient._build_request, "__wrapped__")
def workflow():
    from agentspec.adapters.openai import current_headers
    return current_headers().get("x-agentspec-workflow")
"""


def run(code: str, **environment: str) -> str:
    given = {name: value for name, value in os.environ.items() if not name.startswith("AGENTSPEC")}
    done = subprocess.run(
        [sys.executable, "-c", IS_TAGGED + code],
        env={**given, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "order", ["import openai; undo = auto('flow')", "undo = auto('flow'); import openai"]
)
def test_frameworks_imported_before_and_after(order: str) -> None:
    code = f"from agentspec.adapters import auto; {order}; print(is_tagged(), workflow()); undo(); undo()"
    assert run(f"{code}; print(is_tagged())") == "True flow\nFalse\n"


def test_what_is_imported_when_it_is_over_stays_as_it_is() -> None:
    code = "import sys; from agentspec.adapters import auto; before = list(sys.meta_path); auto('flow')()\n"
    assert run(code + "import openai; print(is_tagged(), sys.meta_path == before)") == "False True\n"


def test_several_of_them() -> None:
    code = "from agentspec.adapters import auto; first = auto('first'); last = auto('last'); import openai\n"
    assert run(
        code + "for undo in (first, last): print(is_tagged(), workflow()); undo()\nprint(is_tagged())"
    ) in (
        "True last\nTrue last\nFalse\n",
        "True first\nTrue last\nFalse\n",  # the order of instrumentation is not specified
    )


def test_below_a_run() -> None:
    code = "from agentspec.adapters import auto; undo = auto('mine'); import openai; print(is_tagged())\n"
    environment = {"PYTHONPATH": str(STARTUP), "AGENTSPEC_WORKFLOW": "run"}
    assert run(code + "undo(); print(is_tagged(), workflow())", **environment) == "True\nTrue run\n"


def test_disabled() -> None:
    code = (
        "from agentspec.adapters import auto; undo = auto('flow'); import openai; print(is_tagged()); undo()"
    )
    assert run(code, AGENTSPEC_DISABLE="1") == "False\n"


def test_an_adapter_that_fails_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "smolagents.py").write_text("class MultiStepAgent: pass\n")
    code = "from agentspec.adapters import auto; auto(); import smolagents, openai; print(is_tagged())"
    said = run(code, PYTHONPATH=str(tmp_path))
    assert said.startswith("True\n")
    assert said.count("no adapter for smolagents: ") == 1


def test_bad_arguments_change_nothing() -> None:
    before = list(sys.meta_path)
    with pytest.raises(StageError):
        auto("a//b")
    with pytest.raises(ConfigError):
        auto(hosts=["a b"])
    assert sys.meta_path == before
