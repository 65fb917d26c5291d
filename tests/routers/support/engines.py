"""Engines behind a router: AgentSpec's embedded one with the bundled model, in processes of their own."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.routers.support.processes import answers, client_at, running

COMMAND = (sys.executable, "-m", "agentspec", "serve", "--threads", "1", "--dtype", "float64")


class EngineProcess:
    """An engine on a fixed port, which can be killed and started again.

    Its model computes in float64: answers do not depend on what else the engine has drafted.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = client_at(self.url)
        self._log = log
        self._running = ExitStack()

    def start(self, *, waits: bool = True) -> None:
        """Start the engine and wait until it answers, unless ``waits`` is False."""
        command = (*COMMAND, "--port", str(self.port))
        is_ready = partial(answers, self.client, "/health") if waits else lambda: True
        self._running.enter_context(running(command, self._log, is_ready, OMP_NUM_THREADS="1"))

    def kill(self) -> None:
        """End the process without notice; does nothing if it does not run."""
        self._running.close()

    def close(self) -> None:
        """End the process and close the client."""
        self.kill()
        self.client.close()

    @property
    def num_requests(self) -> int:
        """Number of calls that the engine has answered since its start, over all stages."""
        return sum(int(stage["num_requests"]) for stage in self._stages())

    @property
    def stages(self) -> set[str]:
        """Names of the stages of these calls."""
        return {str(stage["stage"]) for stage in self._stages()}

    def _stages(self) -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = self.client.get("/agentspec/stages").json()["stages"]
        return stages
