"""Programs under test: real processes, each with a log file, killed at the end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

START_TIMEOUT_S = 180.0  # only a guard against hanging: the machine may be busy
INTERVAL_S = 0.1


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, is_ready: Callable[[], bool], **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process of ``command`` once ``is_ready``; kill it at the end.

    Raises:
        AssertionError: it ended, or is not ready in time. The message has the end of its log.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    try:
        ready = wait_until(lambda: process.poll() is not None or is_ready(), START_TIMEOUT_S)
        is_running = ready and process.poll() is None
        assert is_running, f"{command[0]} did not start:\n{log.read_text()[-4000:]}"
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(is_done: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> bool:
    """Return True once ``is_done``, or False after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(INTERVAL_S)
    return True


def client_at(url: str) -> httpx.Client:
    """Return a client of the program at ``url``, without the environment's proxies and certificates."""
    return httpx.Client(base_url=url, trust_env=False, verify=False)


def answers(client: httpx.Client, path: str) -> bool:
    """True if a GET of ``path`` is answered with 200."""
    try:
        return client.get(path).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
