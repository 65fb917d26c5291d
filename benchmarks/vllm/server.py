"""A server process: started by command, awaited, measured from outside, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from agentspec.errors import AgentSpecError, ConfigError
from benchmarks.vllm.counters import Counters

HOST = "127.0.0.1"
START_LIMIT_S = 900.0
STOP_LIMIT_S = 60.0
CHILD_STOP_LIMIT_S = 3.0
CONTROL_LIMIT_S = 120.0
LOG_TAIL_LINES = 12

Read = TypeVar("Read")


class Server:
    """A running server and all its child processes."""

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
        """Start the command, wait until it is healthy on the port, and stop it when the block ends.

        Raises:
            ConfigError: it ended, or was not healthy within five minutes; the message has the end of its log.
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
        """Return vLLM's counts since its start."""
        return Counters.parse(httpx.get(f"{self.url}/metrics", timeout=CONTROL_LIMIT_S).text)

    def control(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to the plugin's control channel; return the response.

        Raises:
            AgentSpecError: the server refused the command.
        """
        url = f"{self.url}/agentspec/{command}"
        method = "GET" if command in ("status", "stages") else "POST"
        answer = httpx.request(method, url, json=arguments or None, timeout=CONTROL_LIMIT_S)
        if answer.is_error:
            raise AgentSpecError(f"{command!r} was refused: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def resident_bytes(self) -> int:
        """Return the resident memory of the server and its children."""
        return int(sum(self._of_each(lambda process: process.memory_info().rss)))

    def cpu_s(self) -> float:
        """Return the processor time of the server and its children so far."""
        return float(sum(self._of_each(lambda process: sum(process.cpu_times()[:2]))))

    def num_open_files(self) -> int:
        """Return the number of file descriptors of the server and its children, connections included."""
        return int(sum(self._of_each(lambda process: process.num_fds())))

    def process_names(self) -> list[str]:
        """Return the first word of each process's command line; vLLM sets it."""
        return list(self._of_each(lambda process: (process.cmdline() or [""])[0]))

    def _of_each(self, read: Callable[[psutil.Process], Read]) -> Iterator[Read]:
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
        """Stop it as Ctrl-C would; kill processes that do not stop, or outlive it."""
        processes = self._processes()
        self._process.send_signal(signal.SIGINT)  # has no effect on an ended process
        psutil.wait_procs(processes[:1], STOP_LIMIT_S)
        _, alive = psutil.wait_procs(processes, CHILD_STOP_LIMIT_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, CHILD_STOP_LIMIT_S)
        self._process.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
