"""A method of somebody else's class, or a function of a module, replaced, and put back."""

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
    """Put ``replacing(original)`` in the place of the class's own method, or of a function of a module.

    Returns:
        what undoes it; if it was replaced again since then, that does nothing.

    Raises:
        AdapterError: there is none of this name, in a version of the framework that nobody tried.
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
    """What makes requests, replaced by what tags them for as long as an instrumentation is in force.

    Args:
        replaced: the arguments of :func:`replace_method`, once for each method.
    """

    def __init__(self, *replaced: tuple[type | ModuleType, str, Callable[[Any], Any]]) -> None:
        self._replaced = replaced
        self._undoing: list[Callable[[], None]] = []
        self._in_force: list[tuple[object, str | None]] = []
        self._lock = Lock()

    @property
    def is_in_force(self) -> bool:
        """If not, a replacement that somebody wrapped, and kept, must do nothing."""
        return bool(self._in_force)

    @property
    def workflow(self) -> str | None:
        """That of the last instrumentation that is in force; it goes before every stage."""
        return self._in_force[-1][1] if self._in_force else None

    def instrument(self, workflow: str | None) -> Callable[[], None]:
        """Tag from now on.

        Returns:
            what undoes it; the methods are put back when no other is in force.

        Raises:
            AdapterError: one of the methods is not there; nothing was changed.
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
