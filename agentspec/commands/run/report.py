"""The servers that a run's Python processes called, and the message for a run without an answered call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from agentspec.commands.gateway_call import KEY_VARIABLE, Gateway, key_header

MAX_NAMED = 5
STATE_TIMEOUT_S = 10.0


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
        return f"{root} answered no call, although the program sent requests there. {_state(gateway)}"
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


def _state(gateway: Gateway) -> str:
    """Return why the gateway answers no calls, as far as its list of models shows."""
    try:
        answer = httpx.get(
            f"{gateway.root}/v1/models",
            headers=key_header(gateway.key),
            timeout=STATE_TIMEOUT_S,
            trust_env=False,
        )
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return f"It requires a key: name one by --key or ${KEY_VARIABLE}"
        if answer.is_error:
            return (
                f"Its engine does not answer, status {answer.status_code}: see the log of `agentspec serve`"
            )
        names = ", ".join(repr(str(model["id"])) for model in answer.json()["data"])
    except httpx.HTTPError as error:
        return f"It has ended, or does not answer: {str(error) or type(error).__name__}"
    except (ValueError, LookupError, TypeError):
        return "The program's own output should say why"
    return f"Its engine serves {names}: the program's own output should say if it asked for another model"


def origin_of(url: str) -> str:
    """Return scheme, host and port as clients write them."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"
