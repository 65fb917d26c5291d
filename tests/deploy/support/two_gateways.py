"""Two real gateways behind the real HAProxy, with the configuration of ``deploy/haproxy``."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.deploy.support.programs import program
from tests.support.ports import reserved_port
from tests.support.serving import serving

CONFIGURATION = Path(__file__).resolve().parents[3] / "deploy" / "haproxy" / "haproxy.cfg"
HAPROXY_VARIABLE = "AGENTSPEC_TEST_HAPROXY"
GATEWAY_HEADER = "x-agentspec-gateway"
NAMES = ("gateway-1", "gateway-2")
WAIT_S = 60.0  # only a guard against hanging


def haproxy() -> str | None:
    """Return the program that ``make test-deploy`` chose; None if these tests are not asked for."""
    return program(HAPROXY_VARIABLE)


@dataclass(frozen=True, slots=True)
class TwoGateways:
    """The root URL of HAProxy, and the gateways' processes by their names in it."""

    root: str
    processes: Mapping[str, subprocess.Popen[str]]

    def wait_for(self, *names: str) -> None:
        """Wait until HAProxy sends requests to exactly these gateways; with none, until it answers 503."""
        deadline = time.monotonic() + WAIT_S
        recent: list[str] = []
        while set(recent) != set(names or ("",)) or len(recent) < 8:
            assert time.monotonic() < deadline, recent
            response = httpx.get(f"{self.root}/v1/models", trust_env=False)
            recent = [*recent, response.headers.get(GATEWAY_HEADER, "")][-8:]
            time.sleep(0.05)


@contextmanager
def two_gateways(engine_root: str, folder: Path) -> Iterator[TwoGateways]:
    """Yield two gateways in front of the engine at ``engine_root``, when both get requests."""
    settings = {"upstreams": [{"url": engine_root, "name": "engine"}], "server": {"log_level": "error"}}
    file = folder / "agentspec.yaml"
    file.write_text(yaml.safe_dump(settings))
    with ExitStack() as stack:
        started = {name: stack.enter_context(serving("--config", str(file))) for name in NAMES}
        addresses = {
            f"AGENTSPEC_{name.upper().replace('-', '_')}": httpx.URL(url).netloc.decode()
            for name, (_, url) in started.items()
        }
        root = stack.enter_context(_haproxy(addresses, folder / "haproxy.log"))
        gateways = TwoGateways(root, {name: process for name, (process, _) in started.items()})
        gateways.wait_for(*NAMES)
        yield gateways


@contextmanager
def _haproxy(addresses: Mapping[str, str], log: Path) -> Iterator[str]:
    executable = haproxy()
    assert executable is not None
    with reserved_port() as port, log.open("w") as output:
        environment = {**os.environ, **addresses, "AGENTSPEC_BIND": f"127.0.0.1:{port}"}
        command = [executable, "-db", "-f", str(CONFIGURATION)]
        with subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
            try:
                _wait_until_it_listens(process, f"http://127.0.0.1:{port}", log)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()


def _wait_until_it_listens(process: subprocess.Popen[bytes], root: str, log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            httpx.get(root, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
