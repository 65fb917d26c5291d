"""Replacement of methods and module functions in other packages, with undo."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from types import ModuleType
from typing import Any

from agentspec.distribution import DOCUMENTS
from agentspec.errors import AdapterError


def replace_method(
    owner: type | ModuleType, name: str, replacing: Callable[[Any], Any]
) -> Callable[[], None]:
    """Replace the class's own method, or the function of a module, with ``replacing(original)``.

    Returns:
        function that restores the original; it does nothing if the method was replaced again since.

    Raises:
        AdapterError: the name does not exist, e.g. in an untested version of the framework.
    """
    if name not in owner.__dict__:
        whole = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        raise AdapterError(f"{whole} has no {name!r}: install a version that {DOCUMENTS}/adapters.md names")
    original = owner.__dict__[name]
    replacement = replacing(original)
    setattr(owner, name, replacement)

    def undo() -> None:
        if owner.__dict__[name] is replacement:
            setattr(owner, name, original)

    return undo


class Tagging:
    """Replacements that tag requests while at least one instrumentation is active.

    Args:
        replaced: arguments of :func:`replace_method`, one tuple per method.
    """

    def __init__(self, *replaced: tuple[type | ModuleType, str, Callable[[Any], Any]]) -> None:
        self._replaced = replaced
        self._undoing: list[Callable[[], None]] = []
        self._in_force: list[tuple[object, str | None]] = []
        self._lock = Lock()

    @property
    def is_in_force(self) -> bool:
        """True if an instrumentation is active. If not, replacements held by other code must do nothing."""
        return bool(self._in_force)

    @property
    def workflow(self) -> str | None:
        """The workflow of the latest active instrumentation, the prefix of every stage."""
        return self._in_force[-1][1] if self._in_force else None

    def instrument(self, workflow: str | None) -> Callable[[], None]:
        """Start tagging.

        Returns:
            function that stops it; the last one to stop restores the methods.

        Raises:
            AdapterError: one of the methods does not exist; nothing was changed.
        """
        mine = (object(), workflow)
        with self._lock:
            if not self._in_force:
                self._replace()
            self._in_force.append(mine)

        def undo() -> None:
            with self._lock:
                if mine in self._in_force:
                    self._in_force.remove(mine)
                    if not self._in_force:
                        self._put_back()

        return undo

    def _replace(self) -> None:
        try:
            for one in self._replaced:
                self._undoing.append(replace_method(*one))
        except BaseException:
            self._put_back()
            raise

    def _put_back(self) -> None:
        while self._undoing:
            self._undoing.pop()()
