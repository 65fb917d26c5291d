"""Stages and tenants: the owners of a request's tokens.

Owns :class:`StageKey` and the rules for a stage path. Knows nothing of HTTP (``wire`` does the
percent-encoding) nor of trees (``forest`` owns those).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentspec.errors import StageError

DEFAULT_TENANT = "default"
DEFAULT_STAGE = "default"
MAX_SEGMENTS = 8
MAX_PATH_CHARS = 255
MAX_TENANT_CHARS = 64
_TENANT = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]+")


def check_tenant(name: str) -> str:
    """Return ``name`` if it is a valid tenant name: it appears in headers, logs, metric labels and files.

    Raises:
        StageError: it has other characters than letters, digits, ``.``, ``_`` and ``-``, is all dots, or has
            no or more than 64 characters.
    """
    if len(name) > MAX_TENANT_CHARS or not _TENANT.fullmatch(name):
        raise StageError(
            f"a tenant's name has 1 to {MAX_TENANT_CHARS} letters (a to z), digits, '.', '_' or '-', and not "
            f"only dots: not {name!r}"
        )
    return name


@dataclass(frozen=True, slots=True)
class StageKey:
    """One stage of one tenant's workflow, e.g. ``StageKey("acme", ("agentic_sql", "extract"))``.

    Raises:
        StageError: the path has no or more than 8 segments, a segment is empty, has white space at
            an end, holds ``/`` or a control character, or the whole is longer than 255 characters.
    """

    tenant: str
    path: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.tenant or not self.tenant.isprintable():
            raise StageError(f"a tenant is a non-empty printable string, not {self.tenant!r}")
        if not 1 <= len(self.path) <= MAX_SEGMENTS:
            raise StageError(f"a stage has 1 to {MAX_SEGMENTS} segments, not {len(self.path)}: {self.path!r}")
        for segment in self.path:
            if not segment or segment != segment.strip() or "/" in segment or not segment.isprintable():
                raise StageError(f"bad stage segment {segment!r} in {'/'.join(self.path)!r}")
        if len(self.name) > MAX_PATH_CHARS:
            raise StageError(f"a stage path has at most {MAX_PATH_CHARS} characters, not {len(self.name)}")

    @classmethod
    def parse(cls, path: str, tenant: str = DEFAULT_TENANT) -> StageKey:
        """Parse ``"agentic_sql/extract"`` into a key. Raises StageError as the constructor does."""
        return cls(tenant, tuple(path.split("/")))

    @property
    def name(self) -> str:
        """The path as text: ``agentic_sql/extract``."""
        return "/".join(self.path)

    @property
    def parents(self) -> tuple[StageKey, ...]:
        """The enclosing paths, nearest first, without the stage itself and the tenant."""
        return tuple(StageKey(self.tenant, self.path[:n]) for n in range(len(self.path) - 1, 0, -1))

    def __str__(self) -> str:
        return f"{self.tenant}:{self.name}"
