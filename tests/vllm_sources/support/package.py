"""The classes, functions and variables of a Python package, from its source files, not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_HOPS = 20  # of imports from a name to its definition


@dataclass(frozen=True, eq=False)
class Definition:
    """What a name of a module stands for.

    Attributes:
        node: a class, a function, the value or annotation of a variable, or None for a module.
    """

    module: Module
    name: str
    node: ast.AST | None

    @property
    def place(self) -> str:
        """Path and line, for messages."""
        return f"{self.module.file}:{getattr(self.node, 'lineno', 1)}"


class Module:
    """One source file.

    Attributes:
        name: dotted name.
        file: its path below the package's folder.
        classes: what is known of its classes (``classes.class_of``).
    """

    def __init__(self, package: Package, name: str, path: Path) -> None:
        self.package = package
        self.name = name
        self.file = path.relative_to(package.root).as_posix()
        self.is_package = path.name == "__init__.py"
        self.classes: dict[ast.AST | None, object] = {}
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """The statement that binds each name at the top level; ``if`` and ``try`` count as top level."""
        found: dict[str, ast.AST] = {}
        for node in top_level(self.tree.body):
            for name in bound_names(node):
                if name not in found or isinstance(node, (ast.ClassDef, *FUNCTIONS)):
                    found[name] = node
        return found

    def find(self, name: str, hops: int = 0) -> Definition | None:
        """Return the definition of a top-level name, through imports; None if there is none."""
        if hops > MOST_HOPS:
            return None
        node = self.names.get(name)
        if isinstance(node, ast.ImportFrom):
            source = absolute(node, self)
            original = next(one.name for one in node.names if (one.asname or one.name) == name)
            return self.package.find(f"{source}.{original}", hops + 1)
        if isinstance(node, ast.Import):
            alias = next(one for one in node.names if (one.asname or one.name.split(".")[0]) == name)
            return self.package.find(alias.name if alias.asname else name, hops + 1)
        if node is not None:
            return Definition(self, name, node)
        if self.is_package:
            inner = self.package.module(f"{self.name}.{name}")
            if inner is not None:
                return Definition(inner, name, None)
        for star in self._stars:
            found = self.package.find(f"{star}.{name}", hops + 1)
            if found is not None:
                return found
        return None

    @cached_property
    def _stars(self) -> list[str]:
        return [
            absolute(node, self)
            for node in top_level(self.tree.body)
            if isinstance(node, ast.ImportFrom) and any(one.name == "*" for one in node.names)
        ]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Package:
    """A package whose folder lies in ``root``."""

    def __init__(self, root: Path, name: str = "vllm") -> None:
        self.root = root
        self.name = name
        self.module = cache(self._module)
        self.owns = cache(self._owns)

    def _module(self, name: str) -> Module | None:
        path = self.root.joinpath(*name.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                return Module(self, name, file)
        return None

    def _owns(self, name: str) -> bool:
        """Return True for a dotted name in this package."""
        return name.split(".")[0] == self.name

    def find(self, path: str, hops: int = 0) -> Definition | None:
        """Return the definition of a dotted path such as ``vllm.config.VllmConfig``, or None."""
        if not self.owns(path):
            return None
        module = self.module(path)
        if module is not None:
            return Definition(module, path.rpartition(".")[2], None)
        parent, _, name = path.rpartition(".")
        found = self.find(parent, hops) if parent else None
        return found.module.find(name, hops) if found is not None and found.node is None else None


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, with those in ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from top_level(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from top_level(handler.body)


def bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (one.asname or one.name.split(".")[0] for one in node.names if one.name != "*")
    elif isinstance(node, ast.Assign):
        targets = [leaf for target in node.targets for leaf in ast.walk(target)]
        yield from (one.id for one in targets if isinstance(one, ast.Name))
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(node.target, ast.Name):
        yield node.target.id


def absolute(node: ast.ImportFrom, module: Module) -> str:
    """Return the absolute name of the module that an import in ``module`` names."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])
