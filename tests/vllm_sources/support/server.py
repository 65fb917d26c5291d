"""Flags, settings, variables and paths of vLLM's server that the plug-in names."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from agentspec.gateway.call import Endpoint
from agentspec.vllm_plugin import launch
from agentspec.vllm_plugin.checks import DRAFTERS
from agentspec.wire import XARGS_FIELD
from tests.vllm_sources.support import table
from tests.vllm_sources.support.types import tree

FLAG = re.compile(r"--?[a-z][a-z0-9-]*")
VARIABLE = re.compile(r"VLLM_[A-Z0-9_]+")
SPECULATIVE = "vllm/config/speculative.py"


def command_lines(version: str, folder: Path) -> Iterator[list[str]]:
    """Yield the command lines that the plug-in makes for a version of vLLM, with each model runner."""
    settings = {"forest_file": str(folder / "forest"), "allow_untested_vllm": True}
    for runner in ("0", "1"):
        environment = patch.dict(os.environ, {launch.RUNNER_VARIABLE: runner})
        with environment, patch.object(launch, "installed_version", lambda: version):
            yield launch.vllm_command("model", settings=settings, zero_hop=True)


def known_flags(sources: Path) -> set[str]:
    """Return the flags of vLLM's server: those of the engine, and those of the server itself."""
    found: set[str] = set()
    entrypoints = (sources / "vllm" / "entrypoints").rglob("cli_args.py")
    files = ["vllm/engine/arg_utils.py", *(str(file.relative_to(sources)) for file in entrypoints)]
    for node in (node for file in files for node in ast.walk(tree(sources, file))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            found |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            found |= {f"--{ast.unparse(one.target).replace('_', '-')}" for one in fields}
    return found | {flag.replace("--", "--no-", 1) for flag in found if flag.startswith("--")}


def texts(root: Path) -> Iterator[str]:
    """Yield the text constants of the plug-in's files."""
    for file in sorted((root / "agentspec" / "vllm_plugin").rglob("*.py")):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        yield from (
            one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )


def missing_names(sources: Path, root: Path) -> Iterator[str]:
    """Yield the flags and variables that the plug-in names and that this version does not have."""
    flags = known_flags(sources)
    variables = set(VARIABLE.findall(ast.unparse(tree(sources, "vllm/envs.py"))))
    for text in texts(root):
        if FLAG.fullmatch(text) and text not in flags | {"-m", "-s"}:
            yield f"there is no flag {text}"
        if VARIABLE.fullmatch(text) and text not in variables:
            yield f"there is no variable {text}"


def wrong_command(sources: Path, line: list[str]) -> Iterator[str]:
    """Yield what is wrong with a command line for this version of vLLM."""
    module = line[line.index("-m") + 1].replace(".", "/") + ".py"
    if "__main__" not in ast.unparse(tree(sources, module)):
        yield f"python -m starts nothing in {module}"
    config = json.loads(line[line.index("--speculative-config") + 1])
    yield from (f"speculative_config has no {name}" for name in config if name not in settings(sources))
    method = config["method"]
    if repr(method) not in ast.unparse(tree(sources, SPECULATIVE)):
        yield f"there is no speculative method {method!r}"
    if method != launch.V1_METHOD and repr(method) in ast.unparse(tree(sources, "vllm/config/vllm.py")):
        yield f"vllm.config.vllm names {method!r}: does model runner V2 refuse it?"


def settings(sources: Path) -> list[str]:
    """Return the names of vLLM's speculative settings."""
    classes = [one for one in ast.walk(tree(sources, SPECULATIVE)) if isinstance(one, ast.ClassDef)]
    bodies = [one.body for one in classes if one.name == "SpeculativeConfig"]
    return [ast.unparse(one.target) for body in bodies for one in body if isinstance(one, ast.AnnAssign)]


def unknown_settings(sources: Path) -> Iterator[str]:
    """Yield the speculative settings that nobody has judged yet, and flags that collide with ``-s``."""
    for name in settings(sources):
        if name not in DRAFTERS | table.LEFT_ALONE:
            yield f"speculative_config has the new setting {name}: may it change outputs?"
    for flag in known_flags(sources):
        if flag.startswith("-s") and flag != "-sc":
            yield f"there is a new short flag {flag}, and -s may no longer be short for -sc"


def other_numbers(sources: Path) -> Iterator[str]:
    """Yield the constants of vLLM with other values than ours."""
    for file, name, ours in table.NUMBERS:
        values = [
            one.value.value
            for one in ast.walk(tree(sources, file))
            if isinstance(one, ast.Assign | ast.AnnAssign)
            and isinstance(one.value, ast.Constant)
            and ast.unparse(one.targets[0] if isinstance(one, ast.Assign) else one.target) == name
        ]
        if ours not in values:
            yield f"{file}: {name} is {values}, ours is {ours}"


def other_limits(sources: Path) -> Iterator[str]:
    """Yield the sampler's files that refuse requests in more or fewer ways than we know."""
    for file in sorted((sources / table.SAMPLER).glob("*.py")):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        adding = [one for one in nodes if isinstance(one, ast.FunctionDef) and one.name == "add_request"]
        found = sum(isinstance(node, ast.Raise | ast.Assert) for one in adding for node in ast.walk(one))
        if found != table.KNOWN_ERRORS.get(file.name, 0):
            yield f"{file.name} refuses requests in {found} ways: is each checked before the engine?"


def untagged_paths(sources: Path) -> Iterator[str]:
    """Yield the paths that generate and whose files don't put ``vllm_xargs`` into sampling parameters."""
    folder = sources / "vllm" / "entrypoints"
    files = {file: file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))}
    for endpoint in Endpoint:
        routers = [file for file, text in files.items() if f'"{endpoint}"' in text]
        near = [text for file, text in files.items() if file.parent in {one.parent for one in routers}]
        if not routers:
            yield f"there is no path {endpoint}"
        elif not any(f"{XARGS_FIELD}:" in text or 'extra="allow"' in text for text in near):
            yield f"no body near {endpoint} has {XARGS_FIELD}"
        elif not any(f"self.{XARGS_FIELD}" in text or f"{XARGS_FIELD}=" in text for text in near):
            yield f"the {XARGS_FIELD} of {endpoint} reach no sampling parameters"


def missing_state(sources: Path) -> Iterator[str]:
    """Yield a message unless vLLM's server keeps its engine where ``control`` looks for it."""
    folder = sources / "vllm" / "entrypoints"
    if not any("state.engine_client = " in file.read_text(encoding="utf-8") for file in folder.rglob("*.py")):
        yield "vLLM's server sets no app.state.engine_client"


def wrong_kernel(sources: Path, root: Path) -> Iterator[str]:
    """Yield a message unless the kernel that ``cpu`` replaces takes as many arguments as ours."""
    ours = _function(ast.parse((root / "agentspec/vllm_plugin/cpu.py").read_text()), "expand")
    theirs = _function(tree(sources, "vllm/v1/sample/rejection_sampler.py"), "expand_kernel")
    if ours != theirs:
        yield f"expand_kernel has {theirs} parameters, ours has {ours}"


def _function(module: ast.Module, name: str) -> int:
    functions = [one for one in ast.walk(module) if isinstance(one, ast.FunctionDef) and one.name == name]
    return len(functions[0].args.args) if functions else -1
