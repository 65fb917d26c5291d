"""A request's headers with fast repeated lookup."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope


class RequestHeaders(Headers):
    """Headers with a lookup table. Starlette's scan the list each time, and tags alone ask for a dozen names.

    If a name occurs several times, the first header counts; ``getlist`` and ``raw`` have all of them.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        self._first: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
        }

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return the first header of this name."""
        return self._first.get(key.lower(), default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._first
