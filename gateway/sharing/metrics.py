"""Metrics of the sharing between gateways."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentspec.gateway.sharing.limits import LimitPool


class SharingCollector(Collector):
    """The gateways alive, and whether this one reaches the store."""

    def __init__(self, pool: LimitPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the present values."""
        alive = "Gateways alive that share limits, as of the last answer of the store"
        yield GaugeMetricFamily("agentspec_gateways", alive, self._pool.num_gateways)
        up = "1 if the store that gateways share can be used"
        yield GaugeMetricFamily("agentspec_gateway_store_up", up, int(not self._pool.is_away))
