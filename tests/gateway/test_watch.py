from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentspec.gateway.dashboard.traffic import TenantWatch, Watch
from agentspec.gateway.tags import Tags
from agentspec.stages import StageKey


def tags(stage: str, session: str | None = None, *, source: str = "header", tenant: str = "acme") -> Tags:
    return Tags(StageKey.parse(stage, tenant), source, session)


@pytest.fixture
def watch() -> Watch:
    ticks: Iterator[int] = iter(range(1000))
    return Watch(lambda: float(next(ticks)))


def test_calls_are_counted_by_stage(watch: Watch) -> None:
    first, second = watch.begin(tags("a/b")), watch.begin(tags("a/b", source="url"))
    traffic = watch.of("acme").stages[("a", "b")]
    assert (traffic.num_running, traffic.num_ended) == (2, 0)
    watch.end(first, 200)
    watch.end(second, 0)
    assert (traffic.num_running, traffic.num_ended, traffic.num_failed) == (0, 2, 1)
    assert traffic.seconds == 2 + 2
    assert traffic.tag_sources == {"header": 1, "url": 1}


@pytest.mark.parametrize(("status", "edges"), [(200, {(("a",), ("b",)): 1}), (0, {}), (400, {}), (503, {})])
def test_a_call_that_failed_is_no_step_of_the_workflow(
    watch: Watch, status: int, edges: dict[tuple[tuple[str, ...], tuple[str, ...]], int]
) -> None:
    watch.end(watch.begin(tags("a", "s")), status)
    watch.end(watch.begin(tags("b", "s")), 200)
    assert watch.of("acme").flow.edges == edges


def test_calls_without_a_session_draw_nothing(watch: Watch) -> None:
    for stage in "abab":
        watch.end(watch.begin(tags(stage)), 200)
    assert watch.of("acme").flow.edges == {}


def test_tenants_do_not_meet(watch: Watch) -> None:
    watch.end(watch.begin(tags("a", "s")), 200)
    watch.end(watch.begin(tags("b", "s", tenant="bolt")), 200)
    for tenant, stage in (("acme", "a"), ("bolt", "b")):
        assert list(watch.of(tenant).stages) == [(stage,)]
        assert watch.of(tenant).flow.edges == {}


def test_stages_are_bounded() -> None:
    watch = TenantWatch(max_stages=2)
    kept = [watch.traffic((name,))[1] for name in "abcab"]
    assert kept == [True, True, False, True, True]
    assert set(watch.stages) == {("a",), ("b",)}
