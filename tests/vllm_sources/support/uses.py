"""The uses of vLLM in our source files: imports, attributes, calls, overrides and replacements, all checked.

A small interpreter of types. Values start at imports, at the parameters of overriding methods (vLLM annotates
them), and at the parameters in ``table``. vLLM's annotations give the types of attributes and results.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.vllm_sources.support.classes import (
    OTHER,
    Callee,
    Class,
    Instance,
    Items,
    Namespace,
    Unknown,
    annotated,
    class_of,
    is_abstract,
    is_implemented,
    type_of,
)
from tests.vllm_sources.support.consumers import Access
from tests.vllm_sources.support.own_code import OwnClass, OwnFile, assignments
from tests.vllm_sources.support.package import FUNCTIONS, Definition, Function, Package
from tests.vllm_sources.support.signatures import mismatch_of_call, mismatch_of_override, swapped

BUILT_IN = "__"
UNTYPED = "the untyped"


@dataclass(frozen=True)
class Own:
    """An object of a class of ours."""

    cls: OwnClass
    base: Class | None


@dataclass(frozen=True)
class Super:
    """What ``super()`` gives in a subclass of a class of the package."""

    cls: Class


@dataclass(frozen=True)
class ItemsMethod:
    """A method of a container."""

    items: Items
    name: str


@dataclass(frozen=True)
class OwnMethod:
    """A function of ours."""

    cls: Own | None
    file: OwnFile = field(compare=False)
    node: Function = field(compare=False)


Values = tuple[object, ...]


@dataclass(frozen=True)
class Finding:
    """Something that this version of vLLM lacks or has otherwise."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass
class Scope:
    """Where an expression stands."""

    file: OwnFile
    own: Own | None = None
    function: Function | None = None
    names: dict[str, Values] = field(default_factory=dict)


class Uses:
    """The uses of a package in source files of ours.

    Args:
        package: vLLM; None = nothing is known of it, and only our own files are checked.
        parameters, attributes, results: see ``table``.

    Attributes:
        found: what is wrong.
        names: names of the package that were found in it.
        absent: names that it lacks and that our code can do without.
    """

    def __init__(
        self,
        package: Package | None,
        files: Iterable[OwnFile],
        parameters: Mapping[str, str | None],
        attributes: Mapping[str, str | None],
        results: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self.found: list[Finding] = []
        self.names: set[str] = set()
        self.absent: set[str] = set()
        self._package = package
        self._files = list(files)
        self._parameters = parameters
        self._attributes = attributes
        self._results = results
        self._own_classes = {one.node.name: one for file in self._files for one in file.classes}
        self._own_functions = {name: file for file in self._files for name in file.functions}
        self._globals: dict[str, dict[str, Values]] = {}
        self._inferring: set[int] = set()
        self._seen: set[tuple[str, str]] = set()

    def check(self) -> None:
        """Read all files."""
        for file in self._files:
            scope = Scope(file)
            scope.names = self._imports(file)
            self._body(
                scope, [one for one in file.tree.body if not isinstance(one, (ast.ClassDef, *FUNCTIONS))]
            )
            for function in file.functions.values():
                self._function(file, None, function)
            for cls in file.classes:
                for own in self._with_bases(cls):
                    self._class(own)

    # ---- names ----

    def _imports(self, file: OwnFile) -> dict[str, Values]:
        """Return what the imports of a file bind, wherever they stand."""
        if file.name in self._globals:
            return self._globals[file.name]
        found: dict[str, Values] = {}
        self._globals[file.name] = found
        optional = {
            id(inner)
            for node in ast.walk(file.tree)
            if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(one) for one in node.handlers)
            for part in node.body
            for inner in ast.walk(part)
        }
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "vllm":
                continue
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                value = self._path(path, file, node, is_optional=id(node) in optional)
                name = alias.asname or alias.name
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *value)))
        for cls in file.classes:
            found.setdefault(cls.node.name, (cls,))
        return found

    def _path(self, path: str, file: OwnFile, node: ast.AST, *, is_optional: bool = False) -> Values:
        if self._package is None:
            return (Unknown(path),)
        definition = self._package.find(path)
        if definition is None:
            if is_optional:
                self.absent.add(path)
            else:
                self.report(file, node, f"there is no {path}")
            return OTHER
        self.names.add(path)
        return _defined(definition, path)

    def report(self, file: OwnFile, node: ast.AST, text: str) -> None:
        """Add a finding at a place of ours, once."""
        place = f"{file.name}:{getattr(node, 'lineno', 0)}"
        if (place, text) not in self._seen:
            self._seen.add((place, text))
            self.found.append(Finding(place, text))

    # ---- classes and functions ----

    def _with_bases(self, cls: OwnClass) -> list[Own]:
        """Return the class once per base in the package; most have none."""
        scope = Scope(cls.file, names=self._imports(cls.file))
        found: list[Own] = []
        for base in cls.node.bases:
            for one in self._value(scope, base):
                if isinstance(one, Class):
                    found.append(Own(cls, one))
                elif isinstance(one, OwnClass):
                    found += [Own(cls, inner.base) for inner in self._with_bases(one) if inner.base]
        return found or [Own(cls, None)]

    def _lineage(self, cls: OwnClass) -> list[OwnClass]:
        """Return the class and those of our classes that it extends."""
        found = [cls]
        for base in cls.node.bases:
            one = self._own_classes.get(ast.unparse(base))
            if one is not None and one is not cls:
                found += self._lineage(one)
        return found

    def own_class(self, name: str) -> Own | None:
        """Return a class of ours with its base in the package; None if no file has it."""
        cls = self._own_classes.get(name)
        return None if cls is None else self._with_bases(cls)[0]

    def check_consumer(self, own: Own, access: Access) -> None:
        """Check that a class of ours has what the package's code reads of it."""
        cls = own.cls
        for one in self._lineage(cls):
            if access.name in one.owned:
                method = one.methods.get(access.name)
                why = None
                if access.call is not None and method is not None:
                    why = mismatch_of_call(access.call, method, is_bound=True)
                    why = why or swapped(access.call, method)
                if why:
                    self.report(
                        cls.file, method or cls.node, f"{access.place} calls {access.name}: ours {why}"
                    )
                return
        if own.base is None or own.base.member(access.name) is None:
            text = f"{access.place} reads {access.name}, which {cls.node.name} lacks"
            self.report(cls.file, cls.node, text)

    def _class(self, own: Own) -> None:
        cls = own.cls
        if own.base is not None:
            self._abstract(own)
            self._collisions(own)
        for method in cls.methods.values():
            self._override(own, method)
            self._function(cls.file, own, method)

    def _abstract(self, own: Own) -> None:
        assert own.base is not None
        defined = {name for one in self._lineage(own.cls) for name in one.owned}
        for name, member in own.base.methods().items():
            if is_abstract(member.node) and name not in defined:
                self.report(own.cls.file, own.cls.node, f"{own.base.path}.{name} is abstract: define it")

    def _collisions(self, own: Own) -> None:
        """Report private names of ours that the base has too, unless the method extends the base's."""
        assert own.base is not None
        for name in own.cls.owned:
            if not name.startswith("_") or name.startswith(BUILT_IN) or own.base.member(name) is None:
                continue
            method = own.cls.methods.get(name)
            if method is None or f"super().{name}(" not in ast.unparse(method):
                node = method or own.cls.node
                self.report(own.cls.file, node, f"{own.base.path} has a {name} of its own: rename ours")

    def _override(self, own: Own, method: Function) -> None:
        member = None if own.base is None else own.base.member(method.name)
        if own.base is None or member is None or method.name.startswith(BUILT_IN):
            return
        self.names.add(f"{own.base.path}.{method.name}")
        if not isinstance(member.node, FUNCTIONS):
            return
        path = f"{own.base.path}.{method.name}"
        why = mismatch_of_override(method, member.node)
        if why:
            self.report(own.cls.file, method, f"{path} {why}")
        if method.name.startswith("_") and not any(
            _calls(one.module.tree, method.name) for one in own.base.ancestors
        ):
            self.report(
                own.cls.file, method, f"{path} is not called in its module: overriding it does nothing"
            )

    def _function(self, file: OwnFile, own: Own | None, function: Function) -> None:
        self._body(self._scope(file, own, function), function.body)

    def _scope(self, file: OwnFile, own: Own | None, function: Function) -> Scope:
        """Return the names of a function: its parameters and variables."""
        scope = Scope(file, own, function, dict(self._imports(file)))
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for index, argument in enumerate(arguments):
            if index == 0 and own is not None and argument.arg in ("self", "cls"):
                scope.names["self"] = scope.names[argument.arg] = (own,)
            else:
                scope.names[argument.arg] = self._parameter(scope, argument, function)
        for node in ast.walk(function):
            if node is not function and isinstance(node, (*FUNCTIONS, ast.Lambda)):
                for argument in (*node.args.args, *node.args.kwonlyargs):
                    scope.names[argument.arg] = self._inner_parameter(scope, argument)
        for _ in range(2):  # a variable may depend on one that is assigned further down
            self._variables(scope, function)
        return scope

    def _parameter(self, scope: Scope, argument: ast.arg, function: Function) -> Values:
        if argument.annotation is None:
            return OTHER
        theirs = self._their_parameter(scope.own, function.name, argument.arg)
        if any(not isinstance(one, Unknown) for one in theirs):
            return theirs
        value = self._own_annotation(scope, argument.annotation, argument.arg)
        if self._package is None and scope.own is not None and self._extends_unknown(scope.own.cls):
            return tuple(Unknown("an override") if isinstance(one, Unknown) else one for one in value)
        return value

    def _inner_parameter(self, scope: Scope, argument: ast.arg) -> Values:
        """Return the type of a parameter of a nested function, or of a lambda, which has no annotation."""
        if argument.annotation is not None:
            return self._own_annotation(scope, argument.annotation, argument.arg)
        return self._instance(scope, argument, self._parameters.get(argument.arg))

    def _their_parameter(self, own: Own | None, function: str, name: str) -> Values:
        """Return the type that the base's method annotates a parameter with; empty without one."""
        base = None if own is None else own.base
        member = None if base is None or function.startswith(BUILT_IN) else base.member(function)
        if member is None or not isinstance(member.node, FUNCTIONS):
            return ()
        for one in (*member.node.args.args, *member.node.args.kwonlyargs):
            if one.arg == name and one.annotation is not None:
                return annotated(member.owner.module, one.annotation, f"{function}({name})")
        return ()

    def _extends_unknown(self, cls: OwnClass) -> bool:
        """Return True for a subclass of the package's classes while nothing is known of the package."""
        scope = Scope(cls.file, names=self._imports(cls.file))
        bases = [
            value
            for one in self._lineage(cls)
            for base in one.node.bases
            for value in self._value(scope, base)
        ]
        return any(isinstance(one, Unknown) for one in bases)

    def _own_annotation(self, scope: Scope, node: ast.expr, name: str) -> Values:
        """Return the type of an annotation of ours. ``Any`` is what the table has under ``name``."""
        text = ast.unparse(node)
        if isinstance(node, ast.Subscript):
            if "Any" not in text:
                return OTHER
            inner = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
            value = self._own_annotation(scope, inner, name)
            return OTHER if value == OTHER else (Items(value, is_mapping="apping" in text),)
        if isinstance(node, ast.BinOp):
            return self._own_annotation(scope, node.left, name) + self._own_annotation(
                scope, node.right, name
            )
        if text == "Any":
            if name not in self._parameters:
                return (Unknown(f"{UNTYPED} {name!r}"),)
            return self._instance(scope, node, self._parameters[name])
        if isinstance(node, ast.Name):
            value = scope.names.get(text, OTHER)
            own = self._own_classes.get(text)
            if own is not None:
                return tuple(self._with_bases(own))
            return tuple(Instance(one) if isinstance(one, Class) else one for one in value)
        return OTHER

    def _instance(self, scope: Scope, node: ast.AST, path: str | None) -> Values:
        """Return an object of the class that the table names."""
        if path is None:
            return OTHER
        value = self._path(path, scope.file, node)
        return tuple(Instance(one) if isinstance(one, Class) else one for one in value)

    def _variables(self, scope: Scope, function: Function) -> None:
        pairs: list[tuple[ast.expr, Values]] = []
        for target, value in assignments(function):
            if isinstance(target, ast.Name):
                pairs.append((target, self._value(scope, value, quiet=True)))
        annotations = {
            node.target.id: self._own_annotation(scope, node.annotation, node.target.id)
            for node in ast.walk(function)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            if "Any" not in ast.unparse(node.annotation)
        }
        pairs = [(name, value) for name, value in pairs if ast.unparse(name) not in annotations]
        pairs += [(ast.Name(name), value) for name, value in annotations.items()]
        for node in ast.walk(function):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                pairs += self._loop(scope, node.target, node.iter)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                pairs.append((node.optional_vars, OTHER))
        for name, value in pairs:
            if isinstance(name, ast.Name):
                known = scope.names.get(name.id, ())
                scope.names[name.id] = tuple(dict.fromkeys((*known, *value)))

    def _loop(self, scope: Scope, target: ast.expr, given: ast.expr) -> list[tuple[ast.expr, Values]]:
        name = ast.unparse(given.func) if isinstance(given, ast.Call) else ""
        if isinstance(given, ast.Call) and isinstance(target, ast.Tuple) and name in ("zip", "enumerate"):
            iterated = given.args if name == "zip" else [ast.Constant(0), *given.args]
            return [
                pair
                for inner, one in zip(target.elts, iterated, strict=False)
                for pair in self._loop(scope, inner, one)
            ]
        each = _elements(self._value(scope, given, quiet=True))
        if isinstance(target, ast.Tuple):  # of a mapping's items
            return [(one, each if one is target.elts[-1] else OTHER) for one in target.elts]
        return [(target, each)]

    # ---- statements ----

    def _body(self, scope: Scope, body: Iterable[ast.AST]) -> None:
        for node in body:
            self._statement(scope, node)

    def _statement(self, scope: Scope, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._replacement(scope, target, node.value)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(scope, child)
            else:
                self._statement(scope, child)

    def _replacement(self, scope: Scope, target: ast.expr, value: ast.expr) -> None:
        """Check that a function or class of the package that is replaced by ours is used, and alike."""
        if not isinstance(target, ast.Attribute):
            return
        for owner in self._value(scope, target.value, quiet=True):
            if not isinstance(owner, Namespace):
                continue
            path = f"{owner.module.name}.{target.attr}"
            if not any(
                isinstance(one, ast.Name) and one.id == target.attr for one in _loads(owner.module.tree)
            ):
                self.report(
                    scope.file, target, f"{path} is not used in its module: replacing it does nothing"
                )
            original = owner.module.find(target.attr)
            ours = self._own_classes.get(ast.unparse(value))
            init = ours.methods.get("__init__") if ours is not None else None
            if original is not None and isinstance(original.node, FUNCTIONS) and init is not None:
                why = mismatch_of_override(init, original.node, is_bound=False)
                if why:
                    self.report(scope.file, target, f"{path} {why}")

    # ---- expressions ----

    def _value(self, scope: Scope, node: ast.expr, *, quiet: bool = False) -> Values:
        """Return the type of an expression; report what it uses that is missing, unless ``quiet``."""
        found, seen, names = list(self.found), set(self._seen), set(self.names)
        value = self._evaluated(scope, node)
        if quiet:
            self.found, self._seen, self.names = found, seen, names
        return value

    def _evaluated(self, scope: Scope, node: ast.expr) -> Values:
        if isinstance(node, ast.Name):
            return scope.names.get(node.id, OTHER)
        if isinstance(node, ast.Attribute):
            return self._attribute(scope, node)
        if isinstance(node, ast.Call):
            return self._call(scope, node)
        if isinstance(node, ast.Subscript):
            self._evaluated(scope, node.slice)
            owner = self._evaluated(scope, node.value)
            return tuple(inner for one in owner for inner in (one.of if isinstance(one, Items) else OTHER))
        if isinstance(node, ast.BoolOp):
            parts = [self._evaluated(scope, one) for one in node.values]
            kept = parts[-1:] if isinstance(node.op, ast.And) else parts
            return tuple(one for part in kept for one in part)
        if isinstance(node, ast.IfExp):
            self._evaluated(scope, node.test)
            return self._evaluated(scope, node.body) + self._evaluated(scope, node.orelse)
        if isinstance(node, (ast.Await, ast.NamedExpr, ast.Starred)):
            return self._evaluated(scope, node.value)
        for child in ast.walk(node):
            if child is not node and isinstance(child, (ast.Attribute, ast.Call)):
                self._evaluated(scope, child)
        return OTHER

    def _attribute(self, scope: Scope, node: ast.Attribute) -> Values:
        owner = self._evaluated(scope, node.value)
        found: list[object] = []
        missing: list[str] = []
        for one in owner:
            values = self._member(scope, one, node)
            if values is None:
                missing.append(_path_of(one))
            else:
                found += values
        if missing and not found:
            self.report(scope.file, node, f"{' or '.join(missing)} has no {node.attr}")
        return tuple(dict.fromkeys(found)) or OTHER

    def _member(self, scope: Scope, one: object, node: ast.Attribute) -> Values | None:
        """Return the type of an attribute of one value; None if it has none of this name."""
        name = node.attr
        if isinstance(one, Own):
            return self._own_member(scope, one, name, node)
        if isinstance(one, OwnClass):
            found = [self._own_member(scope, own, name, node) for own in self._with_bases(one)]
            return None if None in found else tuple(inner for part in found for inner in part or ())
        if isinstance(one, Super):
            member = one.cls.member(name)
            is_there = member is not None and is_implemented(member.node)
            return self._their_member(one.cls, name) if is_there else None
        if isinstance(one, (Instance, Class)):
            cls = one.cls if isinstance(one, Instance) else one
            return self._their_member(cls, name)
        if isinstance(one, Namespace):
            definition = one.module.find(name)
            if definition is not None:
                self.names.add(f"{one.module.name}.{name}")
            else:
                self.report(scope.file, node, f"there is no {one.module.name}.{name}")
            return OTHER if definition is None else _defined(definition, f"{one.module.name}.{name}")
        if isinstance(one, Items):
            return (ItemsMethod(one, name),)
        if isinstance(one, Unknown):
            if self._package is None and not one.path.startswith(UNTYPED):
                return (one,)
            self.report(
                scope.file, node, f"the class of {one.path} is unknown, {name!r} is read: add it to table.py"
            )
        return OTHER

    def _their_member(self, cls: Class, name: str) -> Values | None:
        if name.startswith(BUILT_IN):
            return OTHER
        member = cls.member(name)
        if member is None:
            return None
        self.names.add(f"{cls.path}.{name}")
        key = f"{member.owner.node.name}.{name}"
        if key in self._attributes and self._package is not None:
            paths = (self._attributes[key] or "").split(" | ")
            found = [self._package.find(path) for path in paths]
            known = [one for one in found if one is not None and isinstance(one.node, ast.ClassDef)]
            return tuple(Instance(class_of(one)) for one in known) or OTHER
        return type_of(member)

    def _own_member(self, scope: Scope, own: Own, name: str, node: ast.AST) -> Values | None:
        for cls in self._lineage(own.cls):
            if name in cls.methods:
                method = cls.methods[name]
                callee = OwnMethod(Own(cls, own.base), cls.file, method)
                decorators = [ast.unparse(one) for one in method.decorator_list]
                return (
                    self._result(callee) if {"property", "cached_property"} & set(decorators) else (callee,)
                )
            if name in cls.assigned:
                return self._assigned(own, cls, name)
        if own.base is None:
            return OTHER
        return self._their_member(own.base, name)

    def _assigned(self, own: Own, cls: OwnClass, name: str) -> Values:
        """Return what an attribute of ours is given anywhere."""
        values: list[object] = []
        for value, method in cls.assigned[name]:
            if id(value) in self._inferring:
                continue
            self._inferring.add(id(value))
            scope = Scope(cls.file, own, None, self._imports(cls.file))
            if method is not None:
                scope = self._scope(cls.file, Own(cls, own.base), method)
            values += self._value(scope, value, quiet=True)
            self._inferring.discard(id(value))
        annotation = cls.annotations.get(name)
        if annotation is not None and all(one in OTHER for one in values):
            return self._own_annotation(Scope(cls.file, names=self._imports(cls.file)), annotation, name)
        return tuple(dict.fromkeys(values)) or OTHER

    def _result(self, callee: OwnMethod) -> Values:
        """Return the type of a function's result: of what it returns, if it is annotated with Any."""
        node = callee.node
        if node.returns is None or "Any" not in ast.unparse(node.returns):
            scope = Scope(callee.file, names=self._imports(callee.file))
            return OTHER if node.returns is None else self._own_annotation(scope, node.returns, "")
        if id(node) in self._inferring:
            return OTHER
        self._inferring.add(id(node))
        scope = self._scope(callee.file, callee.cls, node)
        values: list[object] = []
        for one in ast.walk(node):
            if isinstance(one, ast.Return) and one.value is not None:
                values += self._value(scope, one.value, quiet=True)
        self._inferring.discard(id(node))
        return tuple(dict.fromkeys(values)) or OTHER

    def _call(self, scope: Scope, node: ast.Call) -> Values:
        for argument in (*node.args, *(one.value for one in node.keywords)):
            self._evaluated(scope, argument)
        name = ast.unparse(node.func)
        if name == "super" and scope.own is not None:
            base = scope.own.base
            parents = self._lineage(scope.own.cls)[1:]
            if parents:
                return (Own(parents[0], base),)
            return OTHER if base is None else (Super(base),)
        if name == "getattr" and len(node.args) > 1:
            return self._getattr(scope, node)
        if name == "setattr" and node.args:
            self._setattr(scope, node)
        if name in ("list", "tuple", "sorted", "set", "iter", "reversed") and node.args:
            return self._evaluated(scope, node.args[0])
        if name in self._own_functions:
            file = self._own_functions[name]
            return self._result(OwnMethod(None, file, file.functions[name]))
        found: list[object] = []
        for one in self._evaluated(scope, node.func):
            found += self._called(scope, one, node)
        return tuple(dict.fromkeys(found)) or OTHER

    def _getattr(self, scope: Scope, node: ast.Call) -> Values:
        """Return the type of ``getattr(x, "name", default)``: x may lack it."""
        owner, name = self._evaluated(scope, node.args[0]), node.args[1]
        if not isinstance(name, ast.Constant):
            return OTHER
        access = ast.copy_location(ast.Attribute(node.args[0], str(name.value)), node)
        if len(node.args) == 2:
            return self._attribute(scope, access)
        before = len(self.found)
        values = [self._member(scope, one, access) for one in owner if not isinstance(one, Unknown)]
        del self.found[before:]
        if values and all(value is None for value in values):
            self.absent |= {f"{_path_of(one)}.{access.attr}" for one in owner}
        return tuple(dict.fromkeys(one for value in values for one in value or ())) or OTHER

    def _setattr(self, scope: Scope, node: ast.Call) -> None:
        """Report an attribute of ours on an object that takes none."""
        for one in self._evaluated(scope, node.args[0]):
            for cls in one.cls.ancestors if isinstance(one, Instance) else ():
                head = ast.unparse(ast.Tuple([*cls.node.decorator_list, *cls.node.bases], ast.Load()))
                if (
                    "slots=True" in head
                    or "frozen=True" in head
                    or "Struct" in head
                    or "__slots__" in cls.own
                ):
                    self.report(scope.file, node, f"{cls.path} takes no further attributes")

    def _called(self, scope: Scope, one: object, node: ast.Call) -> Values:
        if isinstance(one, Callee):
            why = mismatch_of_call(node, one.node, is_bound=one.is_bound)
            if why:
                self.report(scope.file, node, f"{one.module.name}'s {one.node.name} {why}")
            returns = one.node.returns
            path = f"{one.module.name}.{one.node.name}"
            if path in self._results and self._package is not None:
                return self._instance(scope, node, self._results[path])
            path = f"the result of {path}"
            return (Unknown(path),) if returns is None else annotated(one.module, returns, path)
        if isinstance(one, OwnMethod):
            return self._result(one)
        if isinstance(one, ItemsMethod):
            is_element = one.name in ("get", "pop", "popleft", "setdefault")
            return one.items.of if is_element else (Items(one.items.of),)
        if isinstance(one, Class):
            init = one.member("__init__")
            if init is not None and isinstance(init.node, FUNCTIONS):
                why = mismatch_of_call(node, init.node, is_bound=True)
                if why:
                    self.report(scope.file, node, f"{one.path} {why}")
            return (Instance(one),)
        if isinstance(one, OwnClass):
            return tuple(self._with_bases(one))
        return (one,) if isinstance(one, Unknown) else OTHER


def _defined(definition: Definition, path: str) -> Values:
    """Return the type of a definition at the top level of a module."""
    module, node = definition.module, definition.node
    if node is None:
        return (Namespace(module),)
    if isinstance(node, ast.ClassDef):
        return (class_of(definition),)
    if isinstance(node, FUNCTIONS):
        return (Callee(module, node),)
    if isinstance(node, ast.AnnAssign):
        return annotated(module, node.annotation, path)
    return OTHER


def _path_of(one: object) -> str:
    """Return the dotted name of a value's class in the package, for messages."""
    if isinstance(one, Own):
        return one.cls.node.name if one.base is None else one.base.path
    return (
        one.cls.path if isinstance(one, (Instance, Super)) else getattr(one, "path", one.__class__.__name__)
    )


def _elements(values: Values) -> Values:
    """Return what a loop over these values gives; over a mapping, its keys."""
    found = [inner for one in values if isinstance(one, Items) and not one.is_mapping for inner in one.of]
    return tuple(dict.fromkeys(found)) or OTHER


def _calls(tree: ast.AST, name: str) -> bool:
    """Return True if ``self`` is asked for the method anywhere."""
    calls = (one.func for one in ast.walk(tree) if isinstance(one, ast.Call))
    return any(ast.unparse(one) == f"self.{name}" for one in calls if isinstance(one, ast.Attribute))


def _loads(tree: ast.AST) -> Iterable[ast.AST]:
    return (one for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
