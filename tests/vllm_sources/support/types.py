"""What the plug-in uses of vLLM, checked by mypy: imports, attributes, calls and overridden methods."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.vllm_sources.support import table

CONFIG = Path(__file__).with_name("types.ini")
PLUGIN = "agentspec.vllm_plugin"
TIMEOUT_S = 1800


def wrong_uses(sources: Path, root: Path, cache: Path) -> list[str]:
    """Return what mypy finds in the plug-in of ``root``, with vLLM's package in ``sources``.

    Raises:
        RuntimeError: mypy itself failed.
    """
    command = [sys.executable, "-m", "mypy", "--config-file", str(CONFIG), "--cache-dir", str(cache)]
    environment = {**os.environ, "MYPYPATH": str(sources)}
    command += ["--no-error-summary", "--hide-error-context", "-p", PLUGIN]
    ran = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"mypy failed: {ran.stdout}{ran.stderr}")
    found = [line for line in ran.stdout.splitlines() if ": error: " in line]
    return [line for line in found if not any(known in line for known in table.KNOWN_TO_MYPY)]


def tree(sources: Path, path: str) -> ast.Module:
    """Return a parsed file of vLLM, empty if it is not there."""
    file = sources / path
    return ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")


def unused_names(sources: Path) -> Iterator[str]:
    """Yield the names of modules of vLLM that the plug-in replaces and that their modules do not call."""
    for path, names in table.REPLACED.items():
        called = {ast.unparse(one.func) for one in ast.walk(tree(sources, path)) if isinstance(one, ast.Call)}
        yield from (f"{path} does not call {name}: replacing it does nothing" for name in names - called)


def other_orders(sources: Path) -> Iterator[str]:
    """Yield the calls that vLLM makes in another order than the plug-in relies on."""
    for path, first, second in table.ORDERS:
        functions = [one for one in ast.walk(tree(sources, path)) if isinstance(one, ast.FunctionDef)]
        if not any(_precedes(one, first, second) for one in functions):
            yield f"{path} does not call {first} before {second}"


def _precedes(function: ast.FunctionDef, first: str, second: str) -> bool:
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
    firsts = [one.lineno for one in calls if ast.unparse(one.func) == first]
    seconds = [one.lineno for one in calls if ast.unparse(one.func) == second]
    return bool(firsts and seconds) and max(firsts) < min(seconds)


def unknown_reads(sources: Path) -> Iterator[str]:
    """Yield the attributes that vLLM reads of objects of ours, and that nobody has judged yet."""
    for path, receiver, known in table.READS:
        for node in ast.walk(tree(sources, path)):
            is_read = isinstance(node, ast.Attribute) and ast.unparse(node.value) == receiver
            if isinstance(node, ast.Attribute) and is_read and node.attr not in known:
                yield f"{path}:{node.lineno} reads {receiver}.{node.attr}, which ours may lack"
