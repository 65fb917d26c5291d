"""The servers that a run's Python processes called, and the message for a run without an answered call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from agentspec.commands.gateway_call import Gateway

MAX_NAMED = 5


class RunReport:
    """A file to which Python processes of the run append the origins of their requests."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def origins(self) -> list[str]:
        """Return each origin once: ``https://api.example.com``, ``http://127.0.0.1:8000``."""
        with suppress(OSError):
            return list(dict.fromkeys(self.path.read_text(encoding="utf-8", errors="replace").splitlines()))
        return []


@contextmanager
def run_report() -> Iterator[RunReport]:
    """Yield a report in a temporary file, and remove the file at the end."""
    descriptor, name = tempfile.mkstemp(prefix="agentspec-run-")
    os.close(descriptor)
    path = Path(name)
    try:
        yield RunReport(path)
    finally:
        path.unlink(missing_ok=True)


def missing_calls(gateway: Gateway, origins: list[str]) -> str:
    """Return the message that no call reached the gateway, with possible reasons and remedies."""
    root = gateway.root
    elsewhere = [origin for origin in origins if origin != origin_of(root)]
    if len(elsewhere) < len(origins):
        return (
            f"{root} answered no call, although the program sent requests there: its own output says why, or "
            f"`agentspec doctor --url {root}` does, which names the engine's models"
        )
    if elsewhere:
        names = ", ".join(elsewhere[:MAX_NAMED]) + (", ..." if len(elsewhere) > MAX_NAMED else "")
        return (
            f"no call reached {root}; the program sent requests to {names}. If its code names a base URL,"
            f" remove that, or set it to {root}/v1"
        )
    return (
        f"no call reached {root}. If the program called a model, its code names another base URL, its client"
        f" does not read $OPENAI_BASE_URL, or a proxy took the call: set the client's base URL to {root}/v1"
    )


def origin_of(url: str) -> str:
    """Return scheme, host and port as clients write them."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"
