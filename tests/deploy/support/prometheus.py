"""A real Prometheus that scrapes gateways as pods, for the queries of the chart."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from tests.deploy.support.programs import program
from tests.support.ports import reserved_port

PROMETHEUS_VARIABLE = "AGENTSPEC_TEST_PROMETHEUS"
WAIT_S = 60.0  # only a guard against hanging


def prometheus() -> str | None:
    """Return the program; None without one."""
    return program(PROMETHEUS_VARIABLE)


class Prometheus:
    """A running server at ``root``."""

    def __init__(self, root: str) -> None:
        self.root = root

    def value(self, query: str) -> float | None:
        """Return the only value of a query; None if it has none."""
        response = httpx.get(f"{self.root}/api/v1/query", params={"query": query}, trust_env=False)
        assert response.status_code == 200, response.text
        results = response.json()["data"]["result"]
        assert len(results) <= 1, results
        return float(results[0]["value"][1]) if results else None

    def wait_for(self, query: str, expected: float) -> None:
        """Wait until the query has this value."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.value(query)) != expected:
            assert time.monotonic() < deadline, (query, found)
            time.sleep(0.1)


@contextmanager
def scraping(pods: Mapping[str, str], namespace: str, folder: Path) -> Iterator[Prometheus]:
    """Yield a server that scrapes these URLs, with the labels of pods of these names."""
    executable = prometheus()
    assert executable is not None
    targets = [
        {"targets": [httpx.URL(url).netloc.decode()], "labels": {"namespace": namespace, "pod": pod}}
        for pod, url in pods.items()
    ]
    job = {"job_name": "gateways", "scrape_interval": "1s", "static_configs": targets}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
    options = (f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data")
    command = [executable, *options, f"--web.listen-address={address}", "--log.level=error"]
    with subprocess.Popen(command) as process:
        try:
            _wait_until_ready(process, f"http://{address}")
            yield Prometheus(f"http://{address}")
        finally:
            process.kill()


def _wait_until_ready(process: subprocess.Popen[bytes], root: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        try:
            if httpx.get(f"{root}/-/ready", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
