"""The distribution is agentspec-serving: no file here installs agentspec, another project's."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from agentspec.distribution import DISTRIBUTION
from agentspec.extras import PACKAGES

ROOT = Path(__file__).parents[2]
OTHER_PROJECT = re.compile(
    r"""\b(?:pip[\d.]*|uv|pipx)\b[^\n`;&|()]*\b(?:install|add)\b[^\n`#;&|()]*?(?<![\w./-])agentspec(?![\w./-])
    | (?<![\w./-])agentspec(?:\[[a-z]|[=~<>]=)""",
    re.VERBOSE,
)


def installs_other_project(text: str) -> list[str]:
    """Return the places that name the other project's distribution, each up to its end."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [found[0] for found in OTHER_PROJECT.finditer(joined)]


def tracked_texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    texts = {}
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and path != Path(__file__).resolve() and b"\0" not in (data := path.read_bytes()):
            texts[name] = data.decode("utf-8", "replace")
    return texts


@pytest.mark.parametrize(
    "text",
    [
        "pip install agentspec",
        "pip install 'agentspec[otel]'",
        "pip install --force-reinstall agentspec\n",
        "python -m pip install vllm \\\n    agentspec",
        "uv pip install agentspec==0.1",
        "uv add agentspec",
        "needs agentspec[engine]",
        "agentspec>=0.1",
    ],
)
def test_what_installs_the_other_project(text: str) -> None:
    assert installs_other_project(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install agentspec-serving",
        "pip install 'agentspec-serving[otel]' vllm  # then agentspec doctor",
        "pip uninstall -y agentspec && pip install --force-reinstall agentspec-serving",
        "pip install '.[engine]'",
        "pip install dist/agentspec_serving-0.1.0.whl",
        "pip install vllm; agentspec serve",
        "`pip install vllm`, and agentspec serve",
        'config["agentspec"]',
    ],
)
def test_what_does_not(text: str) -> None:
    assert installs_other_project(text) == []


def test_no_file_installs_the_other_project() -> None:
    found = {
        name: places for name, text in tracked_texts().items() if (places := installs_other_project(text))
    }
    assert found == {}


def test_the_name_and_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert set(PACKAGES) <= set(project["optional-dependencies"])
    assert project["scripts"] == {"agentspec": "agentspec.cli:main"}
