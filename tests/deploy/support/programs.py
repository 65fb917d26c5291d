"""Programs that ``make test-deploy`` names in the environment."""

from __future__ import annotations

import os
import shutil


def program(variable: str) -> str | None:
    """Return the path of the program that a variable names; None if it names none.

    Raises:
        RuntimeError: it names one that is not there. Tests must not be skipped then.
    """
    name = os.environ.get(variable)
    if not name:
        return None
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"${variable} is {name!r}, and there is no such program: install it, or unset it")
    return path
