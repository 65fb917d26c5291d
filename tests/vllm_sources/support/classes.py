"""The members of a class and their types, as far as annotations and simple assignments tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tests.vllm_sources.support.package import FUNCTIONS, Definition, Function, Module

# containers by the index of the type that their elements have
ELEMENTS = {
    **dict.fromkeys(
        (
            "list",
            "List",
            "set",
            "Set",
            "frozenset",
            "deque",
            "Sequence",
            "Iterable",
            "Iterator",
            "Collection",
        ),
        0,
    ),
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"), 1),
}
WRAPPERS = {"Optional", "Union", "ClassVar", "Final", "Annotated", "Awaitable", "Coroutine", "Required"}


@dataclass(frozen=True)
class Other:
    """A value that is not of the package."""


@dataclass(frozen=True)
class Unknown:
    """A value of the package of unknown type.

    Attributes:
        path: how it was reached, for messages.
    """

    path: str


@dataclass(frozen=True)
class Instance:
    """An object of a class."""

    cls: Class


@dataclass(frozen=True)
class Items:
    """A container; its elements, or the values of a mapping."""

    of: tuple[object, ...]
    is_mapping: bool = False


@dataclass(frozen=True)
class Callee:
    """A function, or a method of an object."""

    module: Module = field(compare=False)
    node: Function = field(compare=False)
    is_bound: bool = False


@dataclass(frozen=True)
class Namespace:
    """A module."""

    module: Module


One = Other | Unknown | Instance | Items | Callee | Namespace
OTHER: tuple[One, ...] = (Other(),)


@dataclass(frozen=True, eq=False)
class Member:
    """An attribute or method of a class.

    Attributes:
        owner: the class in which it was found.
        node: its function, annotation or value.
        function: the method in which ``self.name = value`` stands, if it does.
    """

    owner: Class
    name: str
    node: ast.AST
    function: Function | None = None

    @property
    def is_method(self) -> bool:
        """True for a method that is called, not for a property."""
        return isinstance(self.node, FUNCTIONS) and not is_property(self.node)


class Class:
    """A class of the package. Equal to another one of the same definition."""

    def __init__(self, definition: Definition) -> None:
        assert isinstance(definition.node, ast.ClassDef)
        self.definition = definition
        self.module = definition.module
        self.node = definition.node
        self.path = f"{self.module.name}.{self.node.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Class) and other.node is self.node

    def __hash__(self) -> int:
        return hash(id(self.node))

    @cached_property
    def ancestors(self) -> list[Class]:
        """The class and all its bases in the package, in the order of lookups (depth first)."""
        found = [self]
        for base in self.node.bases:
            definition = resolve(self.module, base.value if isinstance(base, ast.Subscript) else base)
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                found += [one for one in class_of(definition).ancestors if one not in found]
        return found

    def member(self, name: str) -> Member | None:
        """Return the attribute or method of this name, also of the bases; None if there is none."""
        for cls in self.ancestors:
            if name in cls.own:
                return cls.own[name]
        return None

    def methods(self) -> dict[str, Member]:
        """Return the methods by name, with those of the bases."""
        found: dict[str, Member] = {}
        for cls in reversed(self.ancestors):
            found |= {name: one for name, one in cls.own.items() if isinstance(one.node, FUNCTIONS)}
        return found

    @cached_property
    def own(self) -> dict[str, Member]:
        """Its own attributes and methods, without those of the bases."""
        found: dict[str, Member] = {}
        for member in self._written_in_methods():
            known = found.get(member.name)
            if known is None or (_is_empty(known.node) and not _is_empty(member.node)):
                found[member.name] = member
        for node in self.node.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                found[node.name] = Member(self, node.name, node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = Member(self, node.target.id, node.annotation)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, Member(self, target.id, node.value))
        return found

    def _written_in_methods(self) -> Iterator[Member]:
        for method in self.node.body:
            if not isinstance(method, FUNCTIONS):
                continue
            for node in ast.walk(method):
                if isinstance(node, ast.AnnAssign) and _is_of_self(node.target):
                    assert isinstance(node.target, ast.Attribute)
                    yield Member(self, node.target.attr, node.annotation, None)
                elif isinstance(node, ast.Assign):
                    for target in node.targets:
                        for leaf in ast.walk(target):
                            if _is_of_self(leaf):
                                assert isinstance(leaf, ast.Attribute)
                                value = node.value if leaf is target else ast.Constant(None)
                                yield Member(self, leaf.attr, value, method)


def class_of(definition: Definition) -> Class:
    """Return the class of a definition, made once."""
    kept = definition.module.classes
    if definition.node not in kept:
        kept[definition.node] = Class(definition)
    found = kept[definition.node]
    assert isinstance(found, Class)
    return found


def type_of(member: Member) -> tuple[One | Class, ...]:
    """Return the type of an attribute, or of a property's value; a method is a :class:`Callee`."""
    module, node = member.owner.module, member.node
    path = f"{member.owner.path}.{member.name}"
    if isinstance(node, FUNCTIONS):
        if not is_property(node):
            is_static = any(ast.unparse(one) == "staticmethod" for one in node.decorator_list)
            return (Callee(module, node, is_bound=not is_static),)
        return OTHER if node.returns is None else annotated(module, node.returns, path)
    if isinstance(node, ast.ClassDef):
        return (class_of(Definition(module, node.name, node)),)
    if member.function is None:
        return annotated(module, node, path)
    return _of_value(member, node, path)


def _of_value(member: Member, node: ast.AST, path: str) -> tuple[One | Class, ...]:
    """Return the type of the value in ``self.name = value``: a call, a parameter, or another attribute."""
    module, function = member.owner.module, member.function
    assert function is not None
    if isinstance(node, ast.Call):
        definition = resolve(module, node.func)
        if definition is not None and isinstance(definition.node, ast.ClassDef):
            return (Instance(class_of(definition)),)
        if definition is not None and isinstance(definition.node, FUNCTIONS) and definition.node.returns:
            return annotated(definition.module, definition.node.returns, path)
    elif isinstance(node, ast.Name):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for argument in arguments:
            if argument.arg == node.id and argument.annotation is not None:
                return annotated(module, argument.annotation, path)
    elif isinstance(node, ast.Attribute):
        owner = (Instance(member.owner),) if _is_self(node.value) else _of_value(member, node.value, path)
        for one in owner:
            inner = one.cls.member(node.attr) if isinstance(one, Instance) else None
            if inner is not None and inner is not member:
                return type_of(inner)
    return (Unknown(path),)


def annotated(module: Module, node: ast.AST, path: str) -> tuple[One | Class, ...]:
    """Return the type that an annotation in ``module`` means."""
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, str):
            return ()  # None, or an ellipsis
        return annotated(module, ast.parse(node.value, mode="eval").body, path)
    if isinstance(node, ast.BinOp):
        return annotated(module, node.left, path) + annotated(module, node.right, path)
    if isinstance(node, ast.Subscript):
        return _of_subscript(module, node, path)
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return (Unknown(path),)
    name = ast.unparse(node).rpartition(".")[2]
    if name in ("Any", "object"):
        return (Unknown(path),)
    definition = resolve(module, node)
    if definition is None or definition.node is None:
        return OTHER
    if isinstance(definition.node, ast.ClassDef):
        return (Instance(class_of(definition)),)
    value = getattr(definition.node, "value", None)  # an alias of types
    is_alias = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp))
    return annotated(definition.module, value, path) if is_alias and value is not None else OTHER


def _of_subscript(module: Module, node: ast.Subscript, path: str) -> tuple[One | Class, ...]:
    name = ast.unparse(node.value).rpartition(".")[2]
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name in WRAPPERS:
        parts = inner[:1] if name == "Annotated" else inner
        return tuple(one for part in parts for one in annotated(module, part, path))
    if name in ELEMENTS and len(inner) > ELEMENTS[name]:
        index = ELEMENTS[name]
        return (Items(annotated(module, inner[index], path), is_mapping=index == 1),)
    return OTHER


def resolve(module: Module, node: ast.AST) -> Definition | None:
    """Return the definition of a dotted name in a module; None if it is not of the package."""
    if isinstance(node, ast.Name):
        return module.find(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolve(module, node.value)
        if owner is not None and owner.node is None:
            return owner.module.find(node.attr)
        if owner is not None and isinstance(owner.node, ast.ClassDef):
            for inner in owner.node.body:
                if isinstance(inner, ast.ClassDef) and inner.name == node.attr:
                    return Definition(owner.module, inner.name, inner)
    return None


def is_property(node: Function) -> bool:
    """Return True for a property, cached or not."""
    names = [ast.unparse(one).rpartition(".")[2] for one in node.decorator_list]
    return any(name in ("property", "cached_property", "setter") for name in names)


def is_abstract(node: ast.AST) -> bool:
    """Return True for a method that a subclass must override."""
    return isinstance(node, FUNCTIONS) and any(
        ast.unparse(one).rpartition(".")[2] == "abstractmethod" for one in node.decorator_list
    )


def is_implemented(node: ast.AST) -> bool:
    """Return False for an abstract method, and for one that only raises NotImplementedError."""
    if not isinstance(node, FUNCTIONS):
        return True
    last = node.body[-1]
    return not is_abstract(node) and not (
        isinstance(last, ast.Raise) and "NotImplemented" in ast.unparse(last)
    )


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _is_self(node.value)


def _is_empty(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
