"""Engines on a Ray cluster: their outputs against those of one engine, and requests during kills."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.fleet.places import redis_server
from benchmarks.fleet.ray_calls import EXACT, Call, Clients, calls, local_answers
from benchmarks.fleet.ray_cluster import CONTROLLER, ENGINE, RayCluster, num_retries, ray_cluster
from benchmarks.fleet.sizes import Sizes

Figures = dict[str, Any]

NUM_ENGINES = 3
AT_ONCE = 8
_TIMEOUT_S = 300.0


def measure(sizes: Sizes, announce: Announce) -> Figures:
    """Measure three engines on two nodes, undisturbed and while processes are killed.

    Returns:
        ``ray_identical``, the share of complete outputs that equal one embedded engine's, in all runs;
        ``ray_failover_errors``, requests that failed before the client had received anything; streams that
        broke off after they had begun; requests that were sent again; and each run.

    Raises:
        ConfigError: Ray or a Redis server is missing.
    """
    given = calls(sizes.ray_calls)
    announce("ray: one embedded engine")
    expected = local_answers(given)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
        redis_server() as store,
        ray_cluster(redis=store.address) as cluster,
    ):
        node = cluster.add_node(NUM_ENGINES - 1)
        announce("ray: deploying")
        cluster.deploy(engines=NUM_ENGINES, dtype=EXACT, corpus=place)
        faults: dict[str, Callable[[], object]] = {
            "none": lambda: None,
            "engine": lambda: cluster.kill(ENGINE),
            "controller": lambda: cluster.kill(CONTROLLER),
            "head": cluster.restart_head,
            "node": lambda: cluster.kill_node(node),
        }
        by_fault = {}
        for name, fault in faults.items():
            announce(f"ray: fault {name}")
            cluster.wait_until(lambda: len(cluster.processes(ENGINE)) == NUM_ENGINES)
            by_fault[name] = _measured(cluster, given, expected, fault)
    return _summary(by_fault)


def _measured(
    cluster: RayCluster, given: Sequence[Call], expected: Mapping[int, str], fault: Callable[[], object]
) -> Figures:
    clients = Clients(cluster.url, given, _TIMEOUT_S)
    num_retries_before = num_retries(cluster)
    start_s = time.monotonic()
    with clients.running(AT_ONCE):
        clients.wait_answered(min(AT_ONCE, len(given) // 4))
        fault()
    answers = clients.answers
    return {
        "num_calls": len(given),
        "num_complete": len(answers.texts),
        "num_identical": sum(text == expected[number] for number, text in answers.texts.items()),
        "num_errors": answers.num_errors,
        "num_broken_streams": answers.num_broken,
        "num_retries": num_retries(cluster) - num_retries_before,
        "duration_s": time.monotonic() - start_s,
    }


def _summary(by_fault: Mapping[str, Figures]) -> Figures:
    def total(name: str) -> int:
        return sum(one[name] for one in by_fault.values())

    return {
        "ray_identical": total("num_identical") / max(total("num_complete"), 1),
        "ray_failover_errors": total("num_errors"),
        "ray_broken_streams": total("num_broken_streams"),
        "ray_retries": total("num_retries"),
        "by_fault": dict(by_fault),
    }
