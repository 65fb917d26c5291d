"""``agentspec serve`` as a subprocess: start, wait, stop."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
from rich.console import Console

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 15.0


class Server:
    """A gateway with the embedded engine and the bundled model."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, base_url: str, console: Console, *options: str, python: str = sys.executable) -> Server:
        """Start the server on the base URL's host and port and wait until it is healthy.

        ``options`` are further options of ``agentspec serve``. ``python`` needs agentspec-serving[engine].

        Raises:
            SystemExit: the server ended, or was not healthy in two minutes.
        """
        address = urlsplit(base_url)
        host, port = address.hostname or "127.0.0.1", str(address.port or 8000)
        command = [python, "-m", "agentspec", "serve", "--host", host, "--port", port, *options]
        server = cls(subprocess.Popen(command))
        with console.status("starting agentspec serve"):
            server._wait_until_healthy(f"http://{host}:{port}/health")
        return server

    def _wait_until_healthy(self, url: str) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(
                    f"agentspec serve ended with status {self._process.returncode}; its message is above"
                )
            try:
                if httpx.get(url, timeout=1.0).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        self.stop()
        raise SystemExit(f"agentspec serve was not healthy after {_START_LIMIT_S:.0f} s")

    def wait(self) -> None:
        """Return when the server ends or the user interrupts."""
        self._process.wait()

    def stop(self) -> None:
        """Interrupt the server as Ctrl-C would; kill it if it does not stop in time."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(console: Console, *options: str, python: str = sys.executable) -> Iterator[str]:
    """Run a server on a free port, with log level warning, and yield its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    server = Server.start(base_url, console, "--log-level", "warning", *options, python=python)
    try:
        yield base_url
    finally:
        server.stop()
