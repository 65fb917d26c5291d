"""The wheel with its requirements but no extra: a command works, or one sentence names the missing extra."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentspec.cli import build_parser
from tests.installed.support.environment import Environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ("agentic_sql", "self_consistency", "self_refinement", "debate")
ADAPTERS = sorted(  # modules that import a framework
    path.stem
    for path in (ROOT / "adapters").glob("*.py")
    if "with framework():" in path.read_text(encoding="utf-8")
)
CALL = '{"messages": [{"role": "user", "content": "Who?"}], "response": "I."}\n'
# paths that only the repository has, outside of URLs
UNSHIPPED = re.compile(r"(?<![\w/.])(?:docs|deploy)/[\w./-]+\.(?:md|yaml)")


def subcommands(parser: argparse.ArgumentParser) -> list[str]:
    return [
        name
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name in action.choices
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the files that the commands name."""
    (tmp_path / "calls.jsonl").write_text(CALL)
    (tmp_path / "plain").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", subcommands(build_parser()))
def test_help(installed: Environment, command: str, tmp_path: Path) -> None:
    run = installed.run("agentspec", command, "--help", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert not UNSHIPPED.search(run.stdout)


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["serve", "--port", "0"], "torch", "engine"),
        (["serve", "--port", "0", "--engine", "replay", "--trace", "calls.jsonl"], "torch", "engine"),
        (["replay", "calls.jsonl", "--jobs", "1"], "mistral_common", "bench"),
        (["replay", "calls.jsonl", "--jobs", "2"], "mistral_common", "bench"),
        (["replay", "calls.jsonl", "--tokenizer", "plain"], "tokenizers", "engine"),
        (["replay", "calls.jsonl", "--plot", "replay.svg"], "matplotlib", "bench"),
    ],
)
def test_what_needs_more_says_so(
    installed: Environment, command: list[str], package: str, extra: str, folder: Path
) -> None:
    run = installed.run("agentspec", *command, cwd=folder)
    assert run.returncode == 1
    assert f"error: this needs {package}: pip install 'agentspec-serving[{extra}]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("benchmark", "package"),
    [
        (["gateway"], "matplotlib"),
        (["vllm"], "psutil"),
        (["core", "--traces", "."], "matplotlib"),
    ],
)
def test_what_a_benchmark_needs(installed: Environment, benchmark: list[str], package: str) -> None:
    run = installed.run("python", "-m", "benchmarks", *benchmark, cwd=ROOT)
    assert run.returncode == 1
    assert f"error: this needs {package}: pip install 'agentspec-serving[bench]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_say_what_they_need(installed: Environment, example: str) -> None:
    run = installed.run("python", "-m", f"examples.{example}", cwd=ROOT)
    assert run.returncode == 1
    [sentence] = run.stderr.splitlines()
    assert sentence.endswith(": pip install openai")


def messages(source: str) -> Iterator[str]:
    """Yield the strings of a module, except docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_message_names_a_file_that_only_the_repository_has() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for part in ("agentspec", "gateway", "adapters", "benchmarks")
        for path in (ROOT / part).rglob("*.py")
        for text in messages(path.read_text(encoding="utf-8"))
        for name in UNSHIPPED.findall(text)
    }
    assert found == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_says_what_it_needs(installed: Environment, adapter: str, tmp_path: Path) -> None:
    run = installed.run("python", "-c", f"import agentspec.adapters.{adapter}", cwd=tmp_path)
    sentence = run.stderr.splitlines()[-1]
    found = re.fullmatch(r"ModuleNotFoundError: this adapter needs (\w+): pip install (.+)", sentence)
    assert found
    assert {"openai_agents": "agents"}.get(adapter, adapter) in (found[1], *found[1].split("_", 1))


def test_a_framework_of_another_version(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "ag2.py").write_text("class Agent: ...")  # without ag2.network
    run = installed.run("python", "-c", "import agentspec.adapters.ag2", cwd=tmp_path)
    sentence = run.stderr.splitlines()[-1]
    assert sentence.startswith("ModuleNotFoundError: this adapter needs ag2.network: install a version that ")


def test_what_a_framework_itself_misses(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "ag2.py").write_text("import something_of_its_own")
    run = installed.run("python", "-c", "import agentspec.adapters.ag2", cwd=tmp_path)
    assert run.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'something_of_its_own'"
