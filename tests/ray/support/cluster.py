"""Two Ray nodes on this machine, with the application of :mod:`agentspec.ray` on them.

The head node has a CPU for the gateway and room for one engine; the other node has room for engines only.
Room is counted in Ray's resource "GPU", which needs no real one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from agentspec.errors import ConfigError
from agentspec.extras import needed
from benchmarks.vllm.server import HOST, free_port

with needed("ray"):
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from agentspec.ray import app

NAME = "agentspec"
RETRIES = "agentspec_upstream_retries_total{"
ENGINE = f"ray::ServeReplica:{NAME}:engine"
CONTROLLER = "ray::ServeController"
STORE_BYTES = 100 << 20
START_LIMIT_S = 300.0
LOOK_S = 0.2
ON_A_SMALL_MACHINE = {"cpus": 0, "gpus": 1, "slots": 4, "threads": 1}
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A running cluster.

    Attributes:
        cluster: Ray's own.
        url: of Serve's HTTP proxy, on the head node.
    """

    cluster: Cluster
    url: str

    def deploy(self, **arguments: Any) -> None:
        """Deploy the application, and wait until it is ready."""
        serve.run(app({**ON_A_SMALL_MACHINE, **arguments}), name=NAME, route_prefix="/")

    def add_node(self, num_engines: int) -> Any:
        """Add a node with room for engines."""
        node = self.cluster.add_node(
            num_cpus=0, num_gpus=num_engines, object_store_memory=STORE_BYTES, include_dashboard=False
        )
        self.cluster.wait_for_nodes()
        return node

    def kill_node(self, node: Any) -> None:
        """End all processes of a node at once."""
        for process in _processes(node):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def kill(self, title: str) -> None:
        """End the busiest of this cluster's processes with a title at once.

        Raises:
            ConfigError: there is none.
        """
        processes = self.processes(title)
        if not processes:
            raise ConfigError(f"no process {title!r} in this cluster")
        used_s = {process: _cpu_s(process) for process in processes}
        time.sleep(LOOK_S)
        max(processes, key=lambda process: _cpu_s(process) - used_s[process]).kill()

    def restart_head(self) -> None:
        """End the head's control store at once, and start it again. Redis has to keep its state."""
        self.cluster.head_node.kill_gcs_server()
        self.cluster.head_node.start_gcs_server()

    def processes(self, title: str) -> list[psutil.Process]:
        """Return the processes of this cluster whose title begins so."""
        nodes = (self.cluster.head_node, *self.cluster.worker_nodes)
        return [
            process for node in nodes for process in _processes(node) if _title(process).startswith(title)
        ]

    def wait_until(self, is_so: Callable[[], bool], limit_s: float = START_LIMIT_S) -> None:
        """Wait until a condition holds.

        Raises:
            ConfigError: it does not within the limit.
        """
        deadline_s = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > deadline_s:
                raise ConfigError(f"the cluster is not ready after {limit_s:g} s: {serve.status()}")
            time.sleep(0.1)

    def num_engines(self) -> int:
        """Return the number of engine replicas that take requests."""
        states: dict[str, int] = serve.status().applications[NAME].deployments["engine"].replica_states
        return states.get("RUNNING", 0)


@contextmanager
def ray_cluster(*, head_engines: int = 1, redis: str | None = None) -> Iterator[RayCluster]:
    """Yield a cluster of a head node.

    Args:
        head_engines: engines that the head node has room for.
        redis: address of a Redis server that keeps the head's state, as ``host:port``.
    """
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT | ({"RAY_REDIS_ADDRESS": redis} if redis else {}))
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "num_gpus": head_engines,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        },
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False, namespace=NAME)
        port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": HOST, "port": port})
        yield RayCluster(cluster, f"http://{HOST}:{port}")
    finally:
        with suppress(Exception):  # the cluster may be half dead
            serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


def num_retries(cluster: RayCluster) -> int:
    """Return how often the gateway has sent a request again."""
    with client_of(cluster) as client:
        lines = client.get("/metrics").raise_for_status().text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(RETRIES))


def client_of(cluster: RayCluster) -> httpx.Client:
    """Return a client that waits as long as a busy machine needs."""
    return httpx.Client(base_url=cluster.url, timeout=START_LIMIT_S, trust_env=False)


def _processes(node: Any) -> list[psutil.Process]:
    """Return the processes that Ray started for a node, and theirs."""
    started = [info.process.pid for infos in node.all_processes.values() for info in infos]
    found: list[psutil.Process] = []
    for pid in started:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [*process.children(recursive=True), process]
    return found


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, IndexError):
        return str(process.cmdline()[0])
    return ""
