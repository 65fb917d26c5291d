"""A method of somebody else's class, or a function of a module, replaced, and put back."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def replace_method(
    owner: type | ModuleType, name: str, replacing: Callable[[Any], Any]
) -> Callable[[], None]:
    """Put ``replacing(original)`` in the place of the class's own method, or of a function of a module.

    Returns:
        what undoes it; if it was replaced again since then, that does nothing.
    """
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
        """
        mine = (object(), workflow)
        if not self._in_force:
            self._undoing = [replace_method(*one) for one in self._replaced]
        self._in_force.append(mine)

        def undo() -> None:
            if mine in self._in_force:
                self._in_force.remove(mine)
                if not self._in_force:
                    for one in self._undoing:
                        one()

        return undo
