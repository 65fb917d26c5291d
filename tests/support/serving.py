"""A running ``agentspec serve``, for tests of commands."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TIMEOUT_S = 60.0


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a running ``agentspec serve`` and the base URL from its ready line."""
    command = [sys.executable, "-m", "agentspec", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("serving "), ready
            yield process, ready.split()[-1]
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], number: signal.Signals | None = None) -> tuple[int, str]:
    """Wait for the process. Return its exit status and its stderr without INFO lines."""
    if number is not None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, "".join(line for line in errors.splitlines(True) if " INFO " not in line)
