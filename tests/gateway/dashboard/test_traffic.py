from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentspec.gateway.dashboard.traffic import TenantTraffic, TrafficStats
from agentspec.stages import StageKey
from agentspec.tags import Tags


def tags(stage: str, session: str | None = None, *, source: str = "header", tenant: str = "acme") -> Tags:
    return Tags(StageKey.parse(stage, tenant), session=session, stage_source=source)


@pytest.fixture
def traffic_stats() -> TrafficStats:
    ticks: Iterator[int] = iter(range(1000))
    return TrafficStats(lambda: float(next(ticks)))


def test_calls_are_counted_by_stage(traffic_stats: TrafficStats) -> None:
    first, second = traffic_stats.begin(tags("a/b")), traffic_stats.begin(tags("a/b", source="url"))
    traffic = traffic_stats.of("acme").stages[("a", "b")]
    assert (traffic.num_running, traffic.num_ended) == (2, 0)
    traffic_stats.end(first, 200)
    traffic_stats.end(second, 0)
    assert (traffic.num_running, traffic.num_ended, traffic.num_failed) == (0, 2, 1)
    assert traffic.seconds == 2 + 2
    assert traffic.tag_sources == {"header": 1, "url": 1}


@pytest.mark.parametrize(("status", "edges"), [(200, {(("a",), ("b",)): 1}), (0, {}), (400, {}), (503, {})])
def test_a_call_that_failed_is_no_step_of_the_workflow(
    traffic_stats: TrafficStats, status: int, edges: dict[tuple[tuple[str, ...], tuple[str, ...]], int]
) -> None:
    traffic_stats.end(traffic_stats.begin(tags("a", "s")), status)
    traffic_stats.end(traffic_stats.begin(tags("b", "s")), 200)
    assert traffic_stats.of("acme").graph.edges == edges


def test_calls_without_a_session_draw_nothing(traffic_stats: TrafficStats) -> None:
    for stage in "abab":
        traffic_stats.end(traffic_stats.begin(tags(stage)), 200)
    assert traffic_stats.of("acme").graph.edges == {}


def test_tenants_do_not_meet(traffic_stats: TrafficStats) -> None:
    traffic_stats.end(traffic_stats.begin(tags("a", "s")), 200)
    traffic_stats.end(traffic_stats.begin(tags("b", "s", tenant="bolt")), 200)
    for tenant, stage in (("acme", "a"), ("bolt", "b")):
        assert list(traffic_stats.of(tenant).stages) == [(stage,)]
        assert traffic_stats.of(tenant).graph.edges == {}


def test_stages_are_bounded() -> None:
    traffic_stats = TenantTraffic(max_stages=2)
    kept = [traffic_stats.traffic((name,))[1] for name in "abcab"]
    assert kept == [True, True, False, True, True]
    assert set(traffic_stats.stages) == {("a",), ("b",)}
