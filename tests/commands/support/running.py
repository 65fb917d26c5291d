"""Helpers that run ``agentspec run`` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

TIMEOUT_S = 60.0


def command(url: str, *argv: object, options: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-m", "agentspec", "run", "--url", url, *options, "--", *map(str, argv)]


def environment() -> dict[str, str]:
    """Return this process's environment without the variables of clients."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))}


def run(
    url: str, *argv: object, options: Sequence[str] = (), stdin: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(url, *argv, options=options),
        env={**environment(), **variables},
        cwd="/",  # otherwise -c imports the packages of the checkout
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
