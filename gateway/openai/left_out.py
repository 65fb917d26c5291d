"""Names of what a request holds and the model is not shown, for a header of the response."""

from __future__ import annotations

import re

from agentspec.gateway.http.response_writer import RawHeader
from agentspec.wire import LEFT_OUT_HEADER

MAX_NAMES = 16
OTHER = "other"
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,40}")


class LeftOut:
    """Kinds of parts, items and tools of one request that are left out, such as ``tools.mcp``, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, field: str, kind: str) -> None:
        """Add a kind, which the client may have chosen: only its plain characters reach the header."""
        name = f"{field}.{kind if _KIND.fullmatch(kind) else OTHER}"
        if name not in self.names and len(self.names) < MAX_NAMES:
            self.names.append(name)

    def headers(self) -> list[RawHeader]:
        """Return the header of the response; nothing if nothing is left out."""
        return [(LEFT_OUT_HEADER.encode(), ", ".join(self.names).encode())] if self.names else []
