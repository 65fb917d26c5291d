"""The attributes that vLLM's code reads of objects that it gets from us, such as the runner's speculator.

Accesses that vLLM guards (``isinstance``, ``hasattr``) are left out, unless the guard names a base of ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.vllm_sources.support.package import FUNCTIONS, Module

CHECKS = ("isinstance", "hasattr")


@dataclass(frozen=True)
class Access:
    """One place where vLLM reads an attribute of ours.

    Attributes:
        call: the call, if it is called there.
    """

    name: str
    place: str
    call: ast.Call | None


def accesses(
    module: Module, receiver: str, method: str, bases: frozenset[str] = frozenset()
) -> Iterator[Access]:
    """Yield the unguarded reads of attributes of ``receiver``, such as ``self.speculator``.

    Args:
        method: the speculative method that ours serves: a branch of another one is guarded.
        bases: names of vLLM's classes that ours extends: a guard with one of them is none.
    """
    for function in ast.walk(module.tree):
        if isinstance(function, FUNCTIONS):
            names = {receiver, *_aliases(function, receiver)}
            yield from _Reader(module, names, method, bases).block(function.body, is_guarded=False)


def precedes(module: Module, first: str, second: str) -> bool:
    """Return True if a function calls ``first``, and ``second`` further down."""
    for function in ast.walk(module.tree):
        if isinstance(function, FUNCTIONS):
            calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
            firsts = [one.lineno for one in calls if ast.unparse(one.func) == first]
            seconds = [one.lineno for one in calls if ast.unparse(one.func) == second]
            if firsts and seconds and max(firsts) < min(seconds):
                return True
    return False


def _aliases(function: ast.AST, receiver: str) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == receiver:
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))


class _Reader:
    def __init__(self, module: Module, names: set[str], method: str, bases: frozenset[str]) -> None:
        self._module = module
        self._names = names
        self._method = method
        self._bases = bases

    def block(self, body: list[ast.stmt], *, is_guarded: bool) -> Iterator[Access]:
        for node in body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                continue
            if isinstance(node, ast.Assert):
                is_guarded = is_guarded or self._is_check(node.test)
                continue
            yield from self._statement(node, is_guarded)
            leaves = isinstance(node, ast.If) and isinstance(
                node.body[-1], (ast.Return, ast.Raise, ast.Continue)
            )
            if leaves and isinstance(node, ast.If) and self._is_negated_check(node.test):
                is_guarded = True

    def _statement(self, node: ast.stmt, is_guarded: bool) -> Iterator[Access]:
        if isinstance(node, ast.If):
            inside = is_guarded or self._is_check(node.test) or self._is_other_method(node.test)
            yield from self._expression(node.test, is_guarded)
            yield from self.block(node.body, is_guarded=inside)
            yield from self.block(node.orelse, is_guarded=is_guarded)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self.block([child], is_guarded=is_guarded)
            else:
                yield from self._expression(child, is_guarded)

    def _expression(self, node: ast.AST, is_guarded: bool) -> Iterator[Access]:
        if is_guarded:
            return
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            for value in node.values:
                yield from self._expression(value, is_guarded)
                is_guarded = is_guarded or self._is_check(value)
            return
        if isinstance(node, ast.IfExp):
            yield from self._expression(node.test, is_guarded)
            yield from self._expression(node.body, is_guarded or self._is_check(node.test))
            yield from self._expression(node.orelse, is_guarded)
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._is_ours(node.func):
            yield Access(node.func.attr, self._place(node), node)
            for argument in (*node.args, *node.keywords):
                yield from self._expression(argument, is_guarded)
            return
        if isinstance(node, ast.Attribute) and self._is_ours(node) and isinstance(node.ctx, ast.Load):
            yield Access(node.attr, self._place(node), None)
            return
        for child in ast.iter_child_nodes(node):
            yield from self._expression(child, is_guarded)

    def _is_ours(self, node: ast.Attribute) -> bool:
        value = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "cast":
            value = value.args[-1]
        return ast.unparse(value) in self._names

    def _is_check(self, test: ast.AST) -> bool:
        """Return True if the test holds only for objects other than ours."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return any(self._is_check(one) for one in test.values)
        if not isinstance(test, ast.Call) or ast.unparse(test.func) not in CHECKS:
            return False
        if ast.unparse(test.args[0]) not in self._names:
            return False
        return not self._bases & {
            ast.unparse(one) for one in ast.walk(test.args[1]) if isinstance(one, ast.Name)
        }

    def _is_negated_check(self, test: ast.AST) -> bool:
        return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and self._is_check(test.operand)

    def _is_other_method(self, test: ast.AST) -> bool:
        """Return True for a test of the speculative method, which is another one than ours."""
        text = ast.unparse(test)
        if ".method ==" in text:
            return repr(self._method) not in text
        used = re.findall(r"\.uses?_(\w+)\(\)", text)
        return bool(used) and not any(self._method.startswith(one) for one in used)

    def _place(self, node: ast.expr) -> str:
        return f"{self._module.file}:{node.lineno}"
