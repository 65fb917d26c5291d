"""Names that users' programs, dashboards and configurations contain, compared with the lists in this folder.

``UPDATE_GOLDEN=1 python -m pytest tests/golden`` rewrites the lists.
A removed line breaks somebody's program.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from agentspec import cli, wire
from agentspec.gateway import Discovery, EmbeddedUpstream, create_app
from agentspec.gateway.call import PATHS
from tests.gateway.support.scripted import ScriptedEngine

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
METRIC = re.compile(r"agentspec_[a-z_]+")


def constants(suffix: str = "", prefix: str = "") -> Iterator[str]:
    """Yield the values of the constants of ``agentspec.wire`` whose names have this suffix and prefix."""
    for name, value in vars(wire).items():
        if name.endswith(suffix) and name.startswith(prefix) and name.isupper() and isinstance(value, str):
            yield value


def headers() -> Iterable[str]:
    return constants(suffix="_HEADER")


def xargs() -> Iterable[str]:
    return (value for value in constants(prefix="XARG_"))


def metrics() -> Iterable[str]:
    """Yield the strings in the gateway's sources that look like names of metrics."""
    keys = {*xargs(), wire.METADATA_STAGE}
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.value if isinstance(node, ast.Constant) else None
            if isinstance(name, str) and METRIC.fullmatch(name) and name not in keys:
                yield name


def endpoints() -> Iterable[str]:
    yield from (f"POST {path}" if "models" not in path else f"GET {path}" for path in PATHS)
    app = create_app(EmbeddedUpstream(ScriptedEngine()), discovery=Discovery(in_background=False))
    for route in _routes(app):
        for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
            yield f"{method} {route.path}"


def _routes(app: object) -> Iterator[Route]:
    """Yield the routes of an application, below its middleware and dispatchers."""
    waiting, seen = [app], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Route):
            yield part
            continue
        waiting += getattr(part, "routes", [])
        waiting += [each for each in _attributes(part) if callable(each)]


def _attributes(part: object) -> Iterable[object]:
    if not type(part).__module__.startswith(("agentspec.gateway", "starlette")):
        return ()
    return getattr(part, "__dict__", {}).values()


def commands() -> Iterable[str]:
    [chosen] = [each for each in cli.build_parser()._actions if each.choices]
    return (str(each) for each in chosen.choices or ())


def python_names() -> Iterable[str]:
    """Yield the names in ``__all__`` of the modules that users import."""
    for package in ("agentspec", "agentspec/engine", "agentspec/ray", "agentspec/recorded"):
        yield from _exported(ROOT / package / "__init__.py", package.replace("/", "."))
    yield from _exported(ROOT / "gateway/__init__.py", "agentspec.gateway")
    for path in sorted((ROOT / "adapters").glob("*.py")):
        name = "agentspec.adapters" if path.stem == "__init__" else f"agentspec.adapters.{path.stem}"
        yield from _exported(path, name)


def _exported(path: Path, module: str) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from (f"{module}.{name}" for name in ast.literal_eval(node.value))


CONTRACTS: dict[str, Callable[[], Iterable[str]]] = {
    "headers": headers,
    "xargs": xargs,
    "metrics": metrics,
    "endpoints": endpoints,
    "commands": commands,
    "python_names": python_names,
}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_names_that_users_depend_on_are_unchanged(contract: str) -> None:
    listed = HERE / f"{contract}.txt"
    found = sorted(set(CONTRACTS[contract]()))
    if os.environ.get("UPDATE_GOLDEN"):
        listed.write_text("".join(f"{name}\n" for name in found))
    assert found == listed.read_text().split("\n")[:-1]


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["--version"], 0),
        (["serve", "--help"], 0),
        ([], 2),
        (["nonsense"], 2),
        (["serve", "--no-such-flag"], 2),
        (["replay", "no-such-file.jsonl"], 1),
        (["forest", "stats", "--url", "http://127.0.0.1:9"], 1),
    ],
)
def test_exit_statuses(argv: list[str], status: int) -> None:
    try:
        found = cli.main(argv)
    except SystemExit as end:
        found = int(end.code or 0)
    assert found == status
