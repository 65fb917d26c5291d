"""The source files of AgentSpec that touch vLLM."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.vllm_sources.support.package import FUNCTIONS, Function

PLUGIN = "agentspec/vllm_plugin"


@dataclass(frozen=True, eq=False)
class OwnClass:
    """A class of ours."""

    file: OwnFile
    node: ast.ClassDef

    @cached_property
    def methods(self) -> dict[str, Function]:
        """Its own methods by name."""
        return {one.name: one for one in self.node.body if isinstance(one, FUNCTIONS)}

    @cached_property
    def assigned(self) -> dict[str, list[tuple[ast.expr, Function | None]]]:
        """The values that its attributes are given, each with the method in which that happens."""
        found: dict[str, list[tuple[ast.expr, Function | None]]] = {}
        for node in self.node.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found.setdefault(ast.unparse(target), []).append((node.value, None))
            elif isinstance(node, ast.AnnAssign):
                value = node.value or ast.Constant(None)
                found.setdefault(ast.unparse(node.target), []).append((value, None))
        for method in self.methods.values():
            for target, given in assignments(method):
                if ast.unparse(target).startswith("self.") and isinstance(target, ast.Attribute):
                    found.setdefault(target.attr, []).append((given, method))
        return found

    @cached_property
    def annotations(self) -> dict[str, ast.expr]:
        """The annotations of its attributes, by name."""
        nodes = [node for node in ast.walk(self.node) if isinstance(node, ast.AnnAssign)]
        inner = {id(node) for method in self.methods.values() for node in ast.walk(method)}
        found = {ast.unparse(one.target): one.annotation for one in nodes if id(one) not in inner}
        for one in nodes:
            if isinstance(one.target, ast.Attribute) and ast.unparse(one.target.value) == "self":
                found[one.target.attr] = one.annotation
        return found

    @property
    def owned(self) -> set[str]:
        """The names that it defines itself."""
        return {*self.methods, *self.assigned}


class OwnFile:
    """A source file of ours.

    Attributes:
        name: path below the checkout.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self.name = path.relative_to(root).as_posix()
        self.stem = path.stem
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    @cached_property
    def classes(self) -> list[OwnClass]:
        """Its classes."""
        return [OwnClass(self, node) for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Its functions at the top level, by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, FUNCTIONS)}

    @cached_property
    def imported(self) -> list[str]:
        """Everything that it imports, as dotted names."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found += [f"{node.module}.{one.name}" for one in node.names]
        return found

    def constant(self, node: ast.AST | None) -> str:
        """Return the text of a constant, or of a name at the top level that stands for one."""
        if isinstance(node, ast.Name):
            values = [value for target, value in assignments(self.tree) if ast.unparse(target) == node.id]
            node = values[0] if values else None
        return str(node.value) if isinstance(node, ast.Constant) else ""

    @property
    def imports_vllm(self) -> bool:
        """True if it imports vLLM, anywhere."""
        return any(name.split(".")[0] == "vllm" for name in self.imported)

    def constants(self) -> Iterator[tuple[int, str]]:
        """Yield the text constants with their lines, without docstrings."""
        docstrings = {
            id(node.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node.lineno, node.value


def own_files(root: Path) -> list[OwnFile]:
    """Return the plugin's files, and all others of the package that import vLLM."""
    files = [OwnFile(root, path) for path in sorted((root / "agentspec").rglob("*.py"))]
    return [one for one in files if one.imports_vllm or one.name.startswith(f"{PLUGIN}/")]


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets and values of the assignments in a body; tuples are taken apart."""
    for one in ast.walk(node):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                yield from _pairs(target, one.value)
        elif (isinstance(one, ast.AnnAssign) and one.value is not None) or isinstance(one, ast.NamedExpr):
            yield one.target, one.value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for inner, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, given)
    elif isinstance(target, ast.Tuple):
        for inner in target.elts:
            yield inner, ast.Constant(None)
    else:
        yield target, value
