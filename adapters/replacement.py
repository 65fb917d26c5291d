"""A method of somebody else's class replaced, and put back."""

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
