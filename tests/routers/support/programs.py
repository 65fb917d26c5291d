"""The routers: how each is started with the files of ``deploy/routers`` in front of some engines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from tests.routers.support.processes import answers, client_at, running
from tests.support.ports import reserved_port

FILES = Path(__file__).resolve().parents[3] / "deploy" / "routers"
FOLDER_VARIABLE = "AGENTSPEC_ROUTERS"  # the folder with the routers' programs; without it nothing is tested
AFFINITY_KEY = "a key for tests"

Command = tuple[list[str | Path], dict[str, str]]


@dataclass(frozen=True)
class Router:
    """A router of another project.

    Attributes:
        program: name of its executable.
        gateway: the gateway's configuration before it.
        command: returns its command line and environment, for the router's port, a free port for its figures,
            the engines' addresses (``host:port``) and an empty folder.
        keeps_headers: True if headers of unknown names reach the engine.
    """

    program: str
    gateway: str
    command: Callable[[str | Path, int, int, Sequence[str], Path], Command]
    keeps_headers: bool = True

    def path(self) -> str | None:
        """Return the program's path; None if it is not installed, or routers are not tested."""
        folder = os.environ.get(FOLDER_VARIABLE)
        return shutil.which(self.program, path=f"{folder}:/usr/sbin:{os.environ['PATH']}") if folder else None


def haproxy(program: str | Path, port: int, _: int, engines: Sequence[str], folder: Path) -> Command:
    """Return the command for HAProxy, whose file reads addresses from the environment."""
    named = {f"ENGINE_{number}": engine for number, engine in zip((1, 2, 3), cycle(engines), strict=False)}
    environment = {"LISTEN": f"127.0.0.1:{port}", **named}
    return [program, "-db", "-f", FILES / "haproxy.cfg"], environment


def envoy(program: str | Path, port: int, admin_port: int, engines: Sequence[str], folder: Path) -> Command:
    """Return the command for Envoy, with the addresses in its file replaced."""
    settings = yaml.safe_load((FILES / "envoy.yaml").read_text(encoding="utf-8"))
    resources = settings["static_resources"]
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = port
    settings["admin"]["address"]["socket_address"]["port_value"] = admin_port
    endpoints = resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    for endpoint, engine in zip(endpoints, cycle(engines), strict=False):
        host, _, engine_port = engine.partition(":")
        endpoint["endpoint"]["address"]["socket_address"] = {"address": host, "port_value": int(engine_port)}
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return [program, "--concurrency", "1", "--use-dynamic-base-id", "-c", file], {}


def script(name: str, variable: str) -> Callable[[str | Path, int, int, Sequence[str], Path], Command]:
    """Return the command for a router that a script of ours starts."""

    def command(
        program: str | Path, port: int, metrics_port: int, engines: Sequence[str], folder: Path
    ) -> Command:
        urls = " ".join(f"http://{engine}" for engine in engines)
        ports = {"PORT": str(port), "METRICS_PORT": str(metrics_port)}
        return [FILES / name], {variable: str(program), "ENGINES": urls, **ports}

    return command


ROUTERS = {
    "haproxy": Router("haproxy", "gateway.yaml", haproxy),
    "envoy": Router("envoy", "gateway.yaml", envoy),
    "smg": Router("smg", "gateway.yaml", script("smg.sh", "SMG"), keeps_headers=False),
    "vllm-router": Router("vllm-router", "gateway-vllm-router.yaml", script("vllm-router.sh", "VLLM_ROUTER")),
}


@contextmanager
def routed(
    router: Router, engines: Sequence[str], folder: Path, **environment: str
) -> Iterator[httpx.Client]:
    """Yield a client of a gateway before ``router`` before the engines at these URLs.

    Args:
        folder: empty folder for logs and files.
        environment: settings of the gateway.
    """
    with reserved_port() as port, reserved_port() as other_port, ExitStack() as stack:
        addresses = [urlsplit(engine).netloc for engine in engines]
        command, variables = router.command(router.path() or "", port, other_port, addresses, folder)
        client = stack.enter_context(client_at(f"http://127.0.0.1:{port}"))
        is_ready = partial(answers, client, "/v1/models")
        stack.enter_context(running(command, folder / "router.log", is_ready, **variables))
        given = {"ROUTER_URL": str(client.base_url), "AFFINITY_KEY": AFFINITY_KEY, **environment}
        yield stack.enter_context(_gateway(router.gateway, folder / "gateway.log", given))


@contextmanager
def _gateway(file: str, log: Path, environment: Mapping[str, str]) -> Iterator[httpx.Client]:
    with reserved_port() as port, client_at(f"http://127.0.0.1:{port}") as client:
        command = [sys.executable, "-m", "agentspec", "serve", "--config", FILES / file, "--port", str(port)]
        with running(command, log, partial(answers, client, "/health"), **environment):
            yield client
