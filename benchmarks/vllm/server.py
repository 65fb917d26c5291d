"""A server process: started with its command, waited for, measured from outside, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from agentspec.errors import AgentSpecError, ConfigError
from benchmarks.vllm.counters import Counters

HOST = "127.0.0.1"
START_LIMIT_S = 300.0
STOP_LIMIT_S = 60.0
CHILD_STOP_LIMIT_S = 3.0
CONTROL_LIMIT_S = 120.0
LOG_TAIL_LINES = 12


class Server:
    """A running server and all processes that it started."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process = process
        self._log = log
        self.url = url

    @classmethod
    @contextmanager
    def running(
        cls,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
        health_path: str = "/health",
    ) -> Iterator[Server]:
        """Start the command, which is to listen on the port, wait until it is healthy, stop it at the end.

        Raises:
            ConfigError: it ended, or was not healthy in five minutes; the message ends with its last words.
        """
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        server = cls(process, f"http://{HOST}:{port}", log)
        try:
            server._wait_until_healthy(health_path)
            yield server
        finally:
            server._stop()

    def counters(self) -> Counters:
        """What vLLM has counted since its start."""
        return Counters.parse(httpx.get(f"{self.url}/metrics", timeout=CONTROL_LIMIT_S).text)

    def control(self, command: str, **arguments: Any) -> dict[str, Any]:
        """What the plugin's control channel answers.

        Raises:
            AgentSpecError: it refuses.
        """
        url = f"{self.url}/agentspec/{command}"
        method = "GET" if command in ("status", "stages") else "POST"
        answer = httpx.request(method, url, json=arguments or None, timeout=CONTROL_LIMIT_S)
        if answer.is_error:
            raise AgentSpecError(f"{command!r} was refused: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def resident_bytes(self) -> int:
        """Memory of the server and its children as the system counts it."""
        return int(sum(self._of_each(lambda process: process.memory_info().rss)))

    def cpu_s(self) -> float:
        """Processor time of the server and its children so far."""
        return float(sum(self._of_each(lambda process: sum(process.cpu_times()[:2]))))

    def num_open_files(self) -> int:
        """File descriptors of the server and its children, connections included."""
        return int(sum(self._of_each(lambda process: process.num_fds())))

    def _of_each(self, read: Callable[[psutil.Process], float]) -> Iterator[float]:
        for process in self._processes():
            try:
                yield read(process)
            except psutil.NoSuchProcess:
                continue

    def _processes(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _wait_until_healthy(self, path: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ConfigError(f"the server ended with status {self._process.returncode}: {self._tail()}")
            try:
                if httpx.get(f"{self.url}{path}", timeout=5.0).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise ConfigError(f"the server was not healthy after {START_LIMIT_S:.0f} s: {self._tail()}")

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(["", *lines[-LOG_TAIL_LINES:]])

    def _stop(self) -> None:
        """End it as Ctrl-C would; kill what does not listen, and what it leaves behind."""
        processes = self._processes()
        self._process.send_signal(signal.SIGINT)  # nothing happens if it has ended
        psutil.wait_procs(processes[:1], STOP_LIMIT_S)
        _, alive = psutil.wait_procs(processes, CHILD_STOP_LIMIT_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, CHILD_STOP_LIMIT_S)
        self._process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
