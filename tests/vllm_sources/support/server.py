"""Flags, settings, variables and paths of vLLM's server that our code names."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from agentspec.gateway.call import Endpoint
from agentspec.vllm_plugin import command
from agentspec.vllm_plugin.lossless import DRAFTERS
from agentspec.vllm_plugin.versions import FIRST_WITH_MESSAGE_TAGS, parse
from agentspec.wire import XARGS_FIELD
from tests.vllm_sources.support import table
from tests.vllm_sources.support.classes import Class, Instance, annotated, class_of
from tests.vllm_sources.support.own_code import PLUGIN, OwnFile
from tests.vllm_sources.support.package import FUNCTIONS, Module, Package

FLAG = re.compile(r"--?[a-z][a-z0-9-]*")
PATH = re.compile(r"vllm(\.\w+)+")
VARIABLE = re.compile(r"VLLM_[A-Z0-9_]+")
RUNNER_V1_METHOD = "custom_class"
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def command_lines(version: str, folder: Path) -> list[list[str]]:
    """Return the command lines that the plugin makes for a version of vLLM, with each model runner."""
    settings = {"forest_file": str(folder / "forest"), "allow_untested_vllm": True}
    is_tagged = parse(version) >= FIRST_WITH_MESSAGE_TAGS
    found = []
    for runner in ("0", "1"):
        with ExitStack() as stack:
            stack.enter_context(patch.object(command, "installed_version", lambda: version))
            stack.enter_context(patch.dict(os.environ, {RUNNER_VARIABLE: runner}))
            found.append(command.vllm_command("model", settings=settings, zero_hop=is_tagged))
    return found


def known_flags(package: Package) -> set[str]:
    """Return the flags of vLLM's server: those of the engine, and those of the server itself."""
    found: set[str] = set()
    _add_arguments(package.module("vllm.engine.arg_utils"), found)
    for path in sorted((package.root / "vllm" / "entrypoints").rglob("cli_args.py")):
        name = ".".join(path.relative_to(package.root).with_suffix("").parts)
        module = package.module(name)
        _add_arguments(module, found)
        for node in module.tree.body if module is not None else ():
            if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                found |= {f"--{ast.unparse(one.target).replace('_', '-')}" for one in fields}
    return found | {flag.replace("--", "--no-", 1) for flag in found if flag.startswith("--")}


def _add_arguments(module: Module | None, found: set[str]) -> None:
    """Add the flags that the module passes to ``add_argument``."""
    for node in ast.walk(module.tree) if module is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            found |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}


def named_flags(files: Iterable[OwnFile]) -> dict[str, str]:
    """Return the flags that the plugin's files name, each with a place."""
    found: dict[str, str] = {}
    for file in files:
        if file.name.startswith(f"{PLUGIN}/"):
            for line, text in file.constants():
                if FLAG.fullmatch(text) and text != "-m":
                    found.setdefault(text, f"{file.name}:{line}")
    return found


def missing_flags(package: Package, files: Iterable[OwnFile], version: tuple[int, int]) -> Iterator[str]:
    """Yield the flags that our code names and this version of vLLM does not have."""
    known = known_flags(package)
    for flag, place in named_flags(files).items():
        if flag not in known and version >= table.FIRST_WITH_FLAG.get(flag, (0, 0)):
            yield f"{place}: there is no flag {flag}"


def wrong_command(package: Package, line: list[str]) -> Iterator[str]:
    """Yield what is wrong with a command line for this version of vLLM."""
    known = known_flags(package)
    for flag in line:
        if FLAG.fullmatch(flag) and flag != "-m" and flag not in known:
            yield f"the command line has {flag}, which there is not"
    module = package.module(line[line.index("-m") + 1])
    if module is None or "__main__" not in ast.unparse(module.tree):
        yield f"python -m {line[line.index('-m') + 1]} starts nothing"
    config = json.loads(line[line.index("--speculative-config") + 1])
    definition = package.find("vllm.config.SpeculativeConfig")
    if definition is None:
        yield "there is no vllm.config.SpeculativeConfig"
        return
    for name in config:
        if class_of(definition).member(name) is None:
            yield f"speculative_config has no {name}"
    methods = literals(definition.module, "SpeculativeMethod")
    if config["method"] not in methods:
        yield f"there is no speculative method {config['method']!r}, only {sorted(methods)}"
    refused = package.module("vllm.config.vllm")
    if config["method"] != RUNNER_V1_METHOD and refused is not None and config["method"] in _texts(refused):
        yield f"vllm.config.vllm names {config['method']!r}: does model runner V2 refuse it?"


def _texts(module: Module) -> set[str]:
    constants = (one for one in ast.walk(module.tree) if isinstance(one, ast.Constant))
    return {one.value for one in constants if isinstance(one.value, str)}


def literals(module: Module, name: str) -> set[str]:
    """Return the texts of an alias of ``Literal`` types, nested ones included."""
    definition = module.find(name)
    found: set[str] = set()
    for node in ast.walk(definition.node) if definition is not None and definition.node is not None else ():
        if isinstance(node, ast.Constant):
            found.add(str(node.value))
        elif isinstance(node, ast.Name) and node.id not in (name, "Literal") and definition is not None:
            found |= literals(definition.module, node.id)
    return found


def missing_paths(package: Package, files: Iterable[OwnFile]) -> Iterator[str]:
    """Yield vLLM's dotted names and variables in our texts that this version does not have."""
    variables = package.module("vllm.envs")
    known = set() if variables is None else variables.names
    for file in files:
        for line, text in file.constants():
            if PATH.fullmatch(text) and package.find(text) is None:
                yield f"{file.name}:{line}: there is no {text}"
            for name in VARIABLE.findall(text) if VARIABLE.fullmatch(text) else ():
                if name not in known:
                    yield f"{file.name}:{line}: there is no variable {name}"


def missing_number(package: Package, path: str, ours: int) -> Iterator[str]:
    """Yield a message unless the constant at ``path`` has our value."""
    definition = package.find(path)
    value = getattr(definition.node, "value", None) if definition is not None else None
    theirs = value.value if isinstance(value, ast.Constant) else None
    if theirs != ours:
        yield f"{path} is {theirs}, ours is {ours}"


def other_limits(package: Package) -> Iterator[str]:
    """Yield the sampler's files that refuse requests in more or fewer ways than we know."""
    folder = package.root / table.SAMPLER
    for file in sorted(folder.rglob("*.py")) if folder.is_dir() else ():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        adding = [one for one in ast.walk(tree) if isinstance(one, FUNCTIONS) and one.name == "add_request"]
        found = sum(isinstance(node, ast.Raise | ast.Assert) for one in adding for node in ast.walk(one))
        if found != table.KNOWN_ERRORS.get(file.name, 0):
            name = f"{table.SAMPLER}/{file.name}"
            yield f"{name} refuses requests in {found} ways: is each checked before the engine?"


def unknown_settings(package: Package) -> Iterator[str]:
    """Yield the speculative settings that nobody has judged yet, and flags that collide with ``-s``."""
    definition = package.find("vllm.config.SpeculativeConfig")
    fields = [] if definition is None else class_of(definition).node.body
    for field in fields:
        name = ast.unparse(field.target) if isinstance(field, ast.AnnAssign) else None
        if name is not None and name not in DRAFTERS | table.LEFT_ALONE:
            yield f"speculative_config has the new setting {name}: may it change outputs?"
    for flag in known_flags(package):
        if flag.startswith("-s") and flag != "-sc":
            yield f"there is a new short flag {flag}, and -s may no longer be short for -sc"


def untagged_paths(package: Package, version: tuple[int, int]) -> Iterator[str]:
    """Yield the paths that generate and whose bodies don't take ``vllm_xargs``."""
    for endpoint in Endpoint:
        if version < table.FIRST_WITH_TAGS.get(endpoint, (0, 0)):
            continue
        bodies = list(_bodies(package, endpoint))
        if not bodies:
            yield f"there is no path {endpoint}"
        elif not any(_takes_xargs(one) for one in bodies):
            yield f"the body of {endpoint} has no {XARGS_FIELD}"
        elif not any(_passes_xargs(one) for one in bodies):
            yield f"the {XARGS_FIELD} of {endpoint} reach no sampling parameters"


def _takes_xargs(body: Class) -> bool:
    """Return True if the body has the field, or passes unknown fields to another body that has it."""
    if body.member(XARGS_FIELD):
        return True
    allows = any("extra='allow'" in ast.unparse(one.node) for one in body.ancestors)
    for member in body.methods().values():
        assert isinstance(member.node, FUNCTIONS)
        returns = member.node.returns
        if (
            allows
            and returns is not None
            and member.name.startswith("to_")
            and "model_dump" in ast.unparse(member.node)
        ):
            types = annotated(member.owner.module, returns, "")
            if any(isinstance(one, Instance) and one.cls.member(XARGS_FIELD) for one in types):
                return True
    return False


def _passes_xargs(body: Class) -> bool:
    """Return True if the body, or a file next to it, puts the field into sampling parameters or a body."""
    folder = body.module.package.root / Path(body.module.file).parent
    for file in folder.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        makes_params = f"self.{XARGS_FIELD}" in text and "extra_args=" in text
        if makes_params or f"{XARGS_FIELD}=" in text:
            return True
    return False


def missing_state(package: Package, files: Iterable[OwnFile]) -> Iterator[str]:
    """Yield the attributes of the server's ``app.state`` that our code reads and vLLM's does not set."""
    folder = package.root / "vllm" / "entrypoints"
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))]
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Attribute) or not ast.unparse(node.value).endswith("app.state"):
                continue
            if not any(re.search(rf"\bstate\.{node.attr} = ", text) for text in texts):
                yield f"{file.name}:{node.lineno}: vLLM's server sets no app.state.{node.attr}"


def wrong_kernels(package: Package, files: Iterable[OwnFile]) -> Iterator[str]:
    """Yield the kernels that we replace by functions with another number of parameters."""
    for file in files:
        for call in ast.walk(file.tree):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "register_kernels":
                continue
            (kernels,) = call.args
            assert isinstance(kernels, ast.Dict)
            for key, value in zip(kernels.keys, kernels.values, strict=True):
                path, ours = file.constant(key), file.functions[ast.unparse(value)]
                definition = package.find(path)
                theirs = None if definition is None else definition.node
                num_ours = len(ours.args.args)
                num_theirs = len(theirs.args.args) if isinstance(theirs, FUNCTIONS) else 0
                if num_ours != num_theirs:
                    text = f"{path} has {num_theirs} parameters, ours has {num_ours}"
                    yield f"{file.name}:{ours.lineno}: {text}"


def _bodies(package: Package, path: str) -> Iterator[Class]:
    """Yield the classes of the bodies that a route takes."""
    for file in sorted((package.root / "vllm" / "entrypoints").rglob("*.py")):
        if f'"{path}"' not in file.read_text(encoding="utf-8"):
            continue
        module = package.module(".".join(file.relative_to(package.root).with_suffix("").parts))
        for node in ast.walk(module.tree) if module is not None else ():
            decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            if isinstance(node, FUNCTIONS) and any(f"router.post('{path}'" in one for one in decorators):
                assert module is not None
                for argument in node.args.args:
                    types = annotated(module, argument.annotation, "") if argument.annotation else ()
                    yield from (one.cls for one in types if isinstance(one, Instance))
