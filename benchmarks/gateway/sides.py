"""The sides that are compared: the stub, our gateway, and LiteLLM's proxy, each in its own process."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from agentspec.reporting.report import Announce
from benchmarks.gateway.client import Target
from benchmarks.gateway.quiet import Quiet
from benchmarks.vllm.server import HOST, Server, free_port

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

DIRECT, OURS, LITELLM = "direct", "agentspec", "litellm"
KEY = "sk-bench-0f4a7d1e9b"
TENANT = "bench"
OUR_HEADERS = {
    "authorization": f"Bearer {KEY}",
    "x-agentspec-stage": "bench/solve",
    "x-agentspec-session": "bench-1",
}
# LiteLLM's documented production settings, with telemetry off
LITELLM_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MASTER_KEY": KEY,
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DONT_SHOW_FEEDBACK_BOX": "true",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    "NO_REDOC": "True",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One route to the stub.

    Attributes:
        server: the gateway's processes; None without a gateway.
        is_faithful: true if it promises not to change a byte of a response.
    """

    name: str
    target: Target
    server: Server | None
    is_faithful: bool = True


@dataclass(frozen=True, slots=True)
class Bench:
    """All running processes.

    Attributes:
        stub: the engine that all gateways use.
        sides: by name, the direct one first.
        clients: one process.
    """

    stub: Server
    sides: dict[str, Side]
    clients: ProcessPoolExecutor
    quiet: Quiet

    def in_client(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run the function in the clients' process; return its result or raise its exception."""
        return self.clients.submit(function, *args, **kwargs).result()


@dataclass(frozen=True, slots=True)
class Setup:
    """Processes to start.

    Attributes:
        litellm: LiteLLM's command; None = it is not measured.
        logs: a folder for the processes' output.
        quiet: waits for a quiet machine, if it has time to wait.
    """

    litellm: Path | None
    logs: Path
    quiet: Quiet

    @contextmanager
    def running(self, models: Sequence[str], announce: Announce, *, peer: bool = True) -> Iterator[Bench]:
        """Run stub and gateways until the block ends; LiteLLM's config needs the names of all models.

        Raises:
            ConfigError: one of them did not start.
        """
        with ExitStack() as stack:
            stub = stack.enter_context(running_stub(self.logs))
            ours = stack.enter_context(self._ours(stub.url))
            sides = [Side(DIRECT, Target(stub.url), None), Side(OURS, Target(ours.url, OUR_HEADERS), ours)]
            if self.litellm and peer:
                announce("starting LiteLLM's proxy")
                proxy = stack.enter_context(self._litellm(self.litellm, stub.url, models))
                target = Target(proxy.url, {"authorization": f"Bearer {KEY}"})
                sides.append(Side(LITELLM, target, proxy, is_faithful=False))
            clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            yield Bench(stub, {side.name: side for side in sides}, stack.enter_context(clients), self.quiet)

    @contextmanager
    def _ours(self, engine_url: str) -> Iterator[Server]:
        port = free_port()
        command = [sys.executable, "-m", "agentspec", "serve", "--engine-url", engine_url]
        command += ["--host", HOST, "--port", str(port), "--log-level", "warning"]
        keys = {"AGENTSPEC_API_KEYS": f"{KEY}={TENANT}"}
        with Server.running(command, port, self.logs / "agentspec.log", keys) as server:
            yield server

    @contextmanager
    def _litellm(self, command: Path, engine_url: str, models: Sequence[str]) -> Iterator[Server]:
        port, config = free_port(), self.logs / "litellm.yaml"
        config.write_text(json.dumps(litellm_config(engine_url, models)))  # JSON is YAML
        arguments = ["--config", str(config), "--host", HOST, "--port", str(port), "--num_workers", "1"]
        with Server.running(
            [str(command), *arguments, "--telemetry", "False"],
            port,
            self.logs / "litellm.log",
            LITELLM_ENVIRONMENT,
            "/health/liveliness",
        ) as server:
            yield server


@contextmanager
def running_stub(logs: Path) -> Iterator[Server]:
    """Run the stub engine in its own process."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway.stub", "--port", str(port)]
    with Server.running(command, port, logs / "stub.log") as server:
        yield server


def litellm_config(engine_url: str, models: Sequence[str]) -> dict[str, object]:
    """Return a config with each model under its own name, no retry, no callback, no database."""
    engine = {"api_base": f"{engine_url}/v1", "api_key": "none"}
    return {
        "model_list": [
            {"model_name": one, "litellm_params": {"model": f"openai/{one}", **engine}} for one in models
        ],
        "litellm_settings": {"set_verbose": False, "request_timeout": 600, "num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": KEY},
    }
