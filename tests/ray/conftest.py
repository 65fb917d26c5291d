"""One Ray cluster of two nodes on this machine for all tests. Without Ray every test here is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ray.support.cluster import RayCluster

HAS_RAY = True
try:
    import ray  # noqa: F401
except ModuleNotFoundError:
    HAS_RAY = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "ray":
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # Ray's own
            if not HAS_RAY:
                item.add_marker(pytest.mark.skip(reason="needs Ray: make test-ray"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """Yield a cluster with room for one engine on the head node and for two on the other.

    Redis keeps the head's state, so that the head can be restarted.
    """
    from benchmarks.fleet.places import redis_server
    from tests.ray.support.cluster import ray_cluster

    with redis_server() as server, ray_cluster(redis=server.address) as running:
        running.add_node(2)
        yield running
